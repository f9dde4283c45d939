"""The whole decoder over packed streams: bits and NaNs stay with their sequence, gradients reach the adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.kernels.packed_linear import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models import decoder as decoder_module
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from tests.models.fixtures.streams import offsets_of, pack
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

RANKS = (4, 9, 16)
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Llama-wide": {"hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 8, "num_key_value_heads": 4},
    "Mistral": {"sliding_window": 20},
    "Qwen2": {"tie_word_embeddings": True},
    "Gemma2": {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 20, "attn_logit_softcapping": 2.0},
    "Qwen3": {"head_dim": 10, "hidden_size": 27, "num_attention_heads": 3, "num_key_value_heads": 1},
}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    family = request.param.split("-")[0]
    return load_decoder(save_checkpoint(tmp_path_factory.mktemp("model"), family, **FAMILIES[request.param]))


@dataclass
class Sample:
    """A sequence of the adapter of ``rank`` (None: of no adapter)."""

    length: int
    rank: int | None

    def tokens(self) -> Tensor:
        return torch.randint(0, 67, (self.length,), generator=torch.Generator().manual_seed(self.length))


def adapters(decoder: Decoder, ranks: Sequence[int], *, poison: int | None = None) -> dict[str, LoraPart]:
    """A bank by hand: each rank's factors depend on the rank alone; the adapter of rank ``poison`` is NaN."""
    parts = {}
    starts: dict[str, int] = {}
    for index, (name, (inputs, outputs)) in enumerate(decoder.linears.items()):
        rows = []
        for rank in ranks:
            generator = torch.Generator().manual_seed(1000 * index + rank)
            factor = torch.randn(rank, inputs + outputs, generator=generator) * 0.1
            rows.append(torch.full_like(factor, float("nan")) if rank == poison else factor)
        both = torch.cat(rows)
        group = "qkv" if name.rsplit(".", 1)[-1] in ("q_proj", "k_proj", "v_proj") else name.rsplit(".", 1)[-1]
        group = name.rsplit(".", 1)[0] + ("gate_up" if group in ("gate_proj", "up_proj") else group)
        column = starts.get(group, 0)
        starts[group] = column + outputs
        a, b = both[:, :inputs].contiguous(), both[:, inputs:].contiguous()
        parts[name] = LoraPart(
            a_RK=a, b_RN=b, grad_a_RK=torch.zeros_like(a), grad_b_RN=torch.zeros_like(b), column_start=column
        )
    return parts


def run(
    decoder: Decoder,
    samples: Sequence[Sample],
    *,
    poison: int | None = None,
    dropout: float = 0.0,
    gradient_checkpointing: bool = False,
) -> tuple[list[Tensor], Mapping[int, list[Tensor]]]:
    """Hidden states by sample, and every gradient by rank, of one packed pass."""
    ranks = sorted({sample.rank for sample in samples if sample.rank is not None})
    parts = adapters(decoder, ranks, poison=poison)
    tokens, positions, attention = pack([sample.tokens() for sample in samples])
    slots = SlotTable(
        row_starts=offsets_of(ranks)[:-1],
        ranks=tuple(ranks),
        scales=(2.0,) * len(ranks),
        dropouts=(dropout,) * len(ranks),
    )
    segments = SegmentTable.from_samples(
        [sample.length for sample in samples],
        slots=[-1 if sample.rank is None else ranks.index(sample.rank) for sample in samples],
        num_slots=len(ranks),
        num_rows=len(tokens),
    )
    keys = torch.arange(1, len(tokens) + 1) * 1_000_003 if dropout else None
    context = LoraContext(factors=parts, slots=slots, segments=segments, row_keys_T=keys)
    hidden = decoder.forward(
        tokens, positions_T=positions, attention=attention, lora=context, gradient_checkpointing=gradient_checkpointing
    )
    gradient = torch.zeros_like(hidden)
    offsets = offsets_of([sample.length for sample in samples])
    for sample, start in zip(samples, offsets, strict=False):
        seeded = torch.Generator().manual_seed(sample.length)
        gradient[start : start + sample.length] = torch.randn(sample.length, hidden.shape[1], generator=seeded)
    hidden.backward(gradient)
    rows = hidden.detach()
    outputs = [rows[start : start + sample.length] for sample, start in zip(samples, offsets, strict=False)]
    gradients = {
        rank: [
            sink[slots.rank_rows(slot)]
            for part in parts.values()
            for sink in (part.grad_a_RK, part.grad_b_RN)
            if sink is not None
        ]
        for slot, rank in enumerate(ranks)
    }
    return outputs, gradients


MINE = [Sample(30, 9), Sample(17, 9), Sample(48, 9)]
PACKS = [
    [Sample(21, 4), *MINE],
    [Sample(30, 4), Sample(90, 4), *MINE, Sample(30, 16), Sample(48, 16)],
    [*MINE, Sample(1, 16), Sample(5, None), Sample(64, None)],
    [Sample(2, 4), Sample(3, 4), Sample(4, 4), *MINE, Sample(17, 16)],
]


def test_a_trial_has_the_same_bits_in_any_pack(decoder: Decoder, threads: int) -> None:
    outputs, gradients = run(decoder, MINE)
    assert all(gradient.abs().max() > 0 for gradient in gradients[9])
    for samples in PACKS:
        first = next(index for index, sample in enumerate(samples) if sample.rank == 9)
        packed_outputs, packed_gradients = run(decoder, samples)
        for ours, theirs in zip(outputs, packed_outputs[first : first + 3], strict=True):
            assert torch.equal(ours, theirs)
        for ours, theirs in zip(gradients[9], packed_gradients[9], strict=True):
            assert torch.equal(ours, theirs)


def test_micro_batch_splits_change_no_bit_of_the_outputs(decoder: Decoder) -> None:
    together, _ = run(decoder, MINE)
    for sample, output in zip(MINE, together, strict=True):
        assert torch.equal(run(decoder, [sample])[0][0], output)


@pytest.mark.parametrize("poison", [4, 16])
def test_nan_in_one_adapter_leaves_the_others_alone(decoder: Decoder, poison: int) -> None:
    samples = [Sample(21, 4), *MINE, Sample(30, 16), Sample(30, None)]
    outputs, gradients = run(decoder, samples)
    dirty_outputs, dirty_gradients = run(decoder, samples, poison=poison)
    for sample, clean, dirty in zip(samples, outputs, dirty_outputs, strict=True):
        assert dirty.isnan().all() if sample.rank == poison else torch.equal(clean, dirty)
    for rank in {4, 9, 16} - {poison}:
        assert all(torch.equal(a, b) for a, b in zip(gradients[rank], dirty_gradients[rank], strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("samples", PACKS)
def test_recomputed_layers_have_the_same_bits(decoder: Decoder, samples: list[Sample], dropout: float) -> None:
    outputs, gradients = run(decoder, samples, dropout=dropout)
    again, gradients_again = run(decoder, samples, dropout=dropout, gradient_checkpointing=True)
    assert all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))
    for rank, expected in gradients.items():
        assert all(torch.equal(a, b) for a, b in zip(expected, gradients_again[rank], strict=True))


def test_nan_stays_with_its_adapter_in_recomputed_layers(decoder: Decoder) -> None:
    samples = [Sample(21, 4), *MINE, Sample(30, 16)]
    _, gradients = run(decoder, samples, gradient_checkpointing=True)
    _, dirty_gradients = run(decoder, samples, poison=4, gradient_checkpointing=True)
    for rank in (9, 16):
        assert all(torch.equal(a, b) for a, b in zip(gradients[rank], dirty_gradients[rank], strict=True))


def test_the_stream_requires_no_gradient_without_adapters_or_in_no_grad(decoder: Decoder) -> None:
    tokens, positions, attention = pack([torch.arange(10)])
    hidden = decoder.forward(tokens, positions_T=positions, attention=attention, lora=None)
    assert not hidden.requires_grad


def test_the_decoder_has_its_layers_head_and_table(decoder: Decoder) -> None:
    assert len(decoder.layers) == decoder.config.num_layers
    assert decoder.head.out_features == decoder.config.vocab_size
    assert decoder.embed(torch.tensor([0, 66])).shape == (2, decoder.config.hidden_size)


def test_where_the_graph_begins_changes_no_bit(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(30, 4), *MINE]
    outputs, gradients = run(decoder, samples, dropout=0.1)
    # from the token rows on, as elsewhere than on a CPU
    monkeypatch.setattr(Decoder, "_begins_graph_later", lambda self, lora: False)
    others, other_gradients = run(decoder, samples, dropout=0.1)
    assert all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True))
    for rank in (4, 9):
        assert all(torch.equal(a, b) for a, b in zip(gradients[rank], other_gradients[rank], strict=True))


def test_streams_need_no_filler_in_float32_on_a_cpu(tmp_path: Path) -> None:
    dense = save_checkpoint(tmp_path / "dense", "Llama")
    assert load_decoder(dense, dtype="float32").takes_any_rows
    assert not load_decoder(dense, dtype="float64").takes_any_rows
    assert not load_decoder(dense, dtype="bfloat16").takes_any_rows
    # experts count on filled streams
    assert not load_decoder(save_checkpoint(tmp_path / "sparse", "Qwen3Moe"), dtype="float32").takes_any_rows


def test_weights_are_arranged_for_few_rows_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_checkpoint(tmp_path / "model", "Llama", hidden_size=64)
    arranged, total = load_decoder(model), load_decoder(model).num_bytes
    arranged.arrange_for_few_rows()
    assert all(getattr(product, "_few_rows", None) is not None for product in arranged.products)
    monkeypatch.setattr(decoder_module, "MOST_ARRANGED_BYTES", total // 2)
    large = load_decoder(model)
    large.arrange_for_few_rows()
    assert all(getattr(product, "_few_rows", None) is None for product in large.products)
