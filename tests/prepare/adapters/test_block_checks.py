"""What blocks come to on a model: shapes by name, notes of size, and warnings about key-value heads."""

from __future__ import annotations

from types import SimpleNamespace

from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.prepare.adapters.block_checks import adapted_shapes, block_notes, block_warnings

LINEARS = {
    "model.layers.0.self_attn.k_proj": (32, 16),
    "model.layers.1.self_attn.k_proj": (32, 16),
    "model.layers.0.mlp.down_proj": (48, 32),
    "model.layers.1.mlp.down_proj": (64, 32),
}


def trials(*specs: AdapterSpec) -> list[SimpleNamespace]:
    return [SimpleNamespace(spec=SimpleNamespace(adapter=spec)) for spec in specs]


def test_shapes_are_counted_by_name_and_width() -> None:
    assert adapted_shapes(LINEARS) == {
        "k_proj": (32, 16, 2),
        "down_proj": (48, 32, 1),
        "down_proj 64 x 32": (64, 32, 1),
    }


def test_each_size_is_noted_once_next_to_plain_lora() -> None:
    blocks = BlockDiagonal(nblocks=2)
    plain, own = AdapterSpec(r=8, lora_alpha=8.0), AdapterSpec(r=8, lora_alpha=8.0, use_bdlora=blocks)
    (note,) = block_notes(trials(plain, own, own), linears=LINEARS)  # type: ignore[arg-type]
    # 272 entries of a rank row, 200 within blocks
    assert note.startswith("nblocks 2, r 8: 1,600 trainable parameters, as LoRA of rank 5.88")
    assert note.endswith("as many as LoRA of rank 8 has BD-LoRA of rank 10")


def test_heads_that_no_server_of_so_many_ranks_could_divide_are_a_warning() -> None:
    config = SimpleNamespace(num_kv_heads=2)
    four, two = (AdapterSpec(r=8, lora_alpha=8.0, use_bdlora=BlockDiagonal(nblocks=n)) for n in (4, 2))
    found = list(block_warnings(trials(four, two), linears=LINEARS, config=config))  # type: ignore[arg-type]
    assert len(found) == 1
    assert "nblocks 4 does not divide the model's 2 key-value heads" in found[0]
    assert "tensor parallel degrees 2 and below" in found[0]
