"""A last layer that computes the rows that are read alone gives the losses and gradients of one that computes all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.models import decoder_layer
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.needed_rows import NeededRows
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

# lengths, slots, and the rows of each sample that are read
LENGTHS, SLOTS = (60, 32, 7, 1, 45, 33, 20), (0, 0, 1, 1, 2, 2, -1)
READS: tuple[list[int], ...] = ([50, 51, 52], [0, 30], [], [0], list(range(10, 44)), [32], [3, 19])
# rounded up to 16 where a sample has as many; a sample that nothing reads keeps its last rows
KEPT = [(37, 53), (60, 92), (92, 99), (99, 100), (100, 145), (162, 178), (178, 198)]
NUM_ROWS = 208
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Gemma2", "Phi3", "Olmo2", "Glm4", "Granite", "Mixtral"]


def segments() -> SegmentTable:
    return SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=3, num_rows=NUM_ROWS)


def reads() -> list[NDArray[np.int64]]:
    """Return the rows that are read by their numbers in the stream."""
    starts = np.cumsum([0, *LENGTHS])
    return [start + np.array(own, dtype=np.int64) for start, own in zip(starts, READS, strict=False)]


def needed_rows() -> NeededRows:
    found = NeededRows.of(segments(), reads())
    assert found is not None
    return found


def opened(folder: Path, family: str, dtype: str = "float32", **settings: Any) -> Decoder:
    own = {**SIZES, **(EXPERTS if family == "Mixtral" else {}), **settings}
    if family in ("Phi3", "Glm4"):
        own["pad_token_id"] = 0
    return load_decoder(save_checkpoint(folder, family, **own), dtype=dtype)


def bank_of(decoder: Decoder, *, dropout: float = 0.0, use_dora: bool = False) -> AdapterBank:
    layout = AdapterLayout(decoder.linears)
    bank = AdapterBank(layout, num_slots=3, num_rank_rows=96, device="cpu", dtype=decoder.dtype)
    for rank, alpha in ((8, 16.0), (8, 12.0), (4, 8.0)):
        spec = AdapterSpec(r=rank, lora_alpha=alpha, lora_dropout=dropout, use_dora=use_dora)
        weights_rD = initial_weights(layout, spec, seed=rank, dtype=decoder.dtype, weight_of=decoder.weight_of)
        generator = torch.Generator().manual_seed(rank)
        weights_rD[:rank] += 0.1 * torch.randn(weights_rD[:rank].shape, generator=generator, dtype=decoder.dtype)
        bank.insert(spec, AdapterState(weights=weights_rD))
    return bank


def passed(
    decoder: Decoder, bank: AdapterBank, needed: NeededRows | None, *, drops: bool = False, checkpointing: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the hidden states of the rows that are read, and all gradients of one pass."""
    bank.grads_RD.zero_()
    keys_T = torch.arange(NUM_ROWS) * 977 if drops else None
    tokens_T = torch.randint(0, 60, (NUM_ROWS,), generator=torch.Generator().manual_seed(3))
    hidden_TD = decoder.forward(
        tokens_T,
        positions_T=torch.cat([torch.arange(length) for length in (*LENGTHS, NUM_ROWS - sum(LENGTHS))]),
        attention=PackedAttention(tuple(np.cumsum([0, *LENGTHS]).tolist())),
        lora=bank.context(segments(), row_keys_T=keys_T),
        gradient_checkpointing=checkpointing,
        needed=needed,
    )
    read_MD = hidden_TD[torch.from_numpy(np.concatenate(reads()))]
    weights_MD = torch.randn(read_MD.shape, generator=torch.Generator().manual_seed(7), dtype=read_MD.dtype)
    (read_MD * weights_MD).sum().backward()
    return read_MD.detach(), bank.grads_RD.clone()


def test_a_sample_keeps_what_lies_between_its_reads_rounded_up() -> None:
    needed = needed_rows()
    expected = [row for start, stop in KEPT for row in range(start, stop)]
    assert needed.rows_M[: needed.num_used].tolist() == expected
    assert needed.segments.num_rows % 16 == 0
    assert [span.stop - span.start for span in needed.segments.samples] == [stop - start for start, stop in KEPT]
    assert [span.slot for span in needed.segments.samples] == list(SLOTS)
    # filler is of rows that are not kept
    filler = set(needed.rows_M[needed.num_used :].tolist())
    assert len(filler) == needed.segments.num_rows - needed.num_used
    assert not filler & set(expected)


@pytest.mark.parametrize("length", [12, 33, 40, 257])
def test_a_sample_whose_last_row_alone_predicts_nothing_keeps_all_rows(length: int) -> None:
    """As one that is trained whole does: to move its rows would cost more than the row that is left out."""
    table = SegmentTable.from_samples([length], slots=[0], num_slots=1, num_rows=272)
    assert NeededRows.of(table, [np.arange(length - 1)]) is None


def test_a_sample_leaves_out_as_much_in_a_stream_that_cannot_be_shorter() -> None:
    """Otherwise its sums would be of more rows there than in a long stream."""
    table = SegmentTable.from_samples([24, 8], slots=[0, 0], num_slots=1, num_rows=32)
    needed = NeededRows.of(table, [np.array([23]), np.array([31])])
    assert needed is not None
    assert needed.rows_M.tolist() == [*range(8, 32), *range(8)]
    assert [span.stop - span.start for span in needed.segments.samples] == [16, 8]
    assert needed.segments.num_rows == 32


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_and_all_gradients_are_those_of_whole_layers(tmp_path: Path, family: str) -> None:
    """In float64, where only the order of a sum differs: gradients of the last layer's weights sum fewer rows."""
    decoder = opened(tmp_path, family, "float64")
    bank = bank_of(decoder)
    whole, least = passed(decoder, bank, None), passed(decoder, bank, needed_rows())
    assert torch.equal(whole[0], least[0])
    torch.testing.assert_close(least[1], whole[1], rtol=1e-11, atol=1e-12)
    assert whole[1].abs().sum() > 0


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_one_node_and_single_nodes_and_recomputed_layers_have_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    decoder = opened(tmp_path, "Llama")
    bank, drops = bank_of(decoder, dropout=dropout), dropout > 0
    together = passed(decoder, bank, needed_rows(), drops=drops)
    recomputed = passed(decoder, bank, needed_rows(), drops=drops, checkpointing=True)
    monkeypatch.setattr(decoder_layer, "through_one_node", lambda *arguments, **keywords: None)
    apart = passed(decoder, bank, needed_rows(), drops=drops)
    whole = passed(decoder, bank, None, drops=drops)
    for hidden, gradients in (recomputed, apart):
        assert torch.equal(hidden, together[0])
        assert torch.equal(gradients, together[1])
    assert torch.equal(together[0], whole[0])
    torch.testing.assert_close(together[1], whole[1], rtol=1e-4, atol=1e-5)


def test_magnitudes_of_dora_read_the_rows_that_are_left(tmp_path: Path) -> None:
    decoder = opened(tmp_path, "Llama", "float64")
    bank = bank_of(decoder, use_dora=True)
    whole, least = passed(decoder, bank, None), passed(decoder, bank, needed_rows())
    torch.testing.assert_close(least[0], whole[0], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(least[1], whole[1], rtol=1e-11, atol=1e-12)


def test_rows_that_are_left_out_are_zero_and_a_layer_computes_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = opened(tmp_path, "Llama")
    needed, heights = needed_rows(), []
    product = decoder.layers[-1].linears[-1].frozen
    forward = product.forward

    def noted(x_TK: Tensor) -> Tensor:
        heights.append(len(x_TK))
        return forward(x_TK)

    monkeypatch.setattr(product, "forward", noted)
    passed(decoder, bank_of(decoder), needed)
    assert heights == [needed.segments.num_rows]
    hidden_TD = decoder.forward(
        torch.zeros(NUM_ROWS, dtype=torch.int64),
        positions_T=torch.zeros(NUM_ROWS, dtype=torch.int64),
        attention=PackedAttention((0, NUM_ROWS)),
        lora=None,
        needed=needed,
    )
    kept = needed.rows_M[: needed.num_used]
    assert not hidden_TD.index_fill(0, kept, 0).any()
    assert hidden_TD[kept].any(dim=1).all()


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Mixtral"])
def test_an_adapter_that_is_no_number_spoils_no_other(tmp_path: Path, family: str) -> None:
    """Its rows are filler of the last layer as well."""
    decoder = opened(tmp_path, family)
    bank, needed = bank_of(decoder), needed_rows()
    assert needed.rows_M[needed.num_used :].lt(LENGTHS[0]).any()
    clean_MD, clean_RD = passed(decoder, bank, needed)
    own = bank.slot_table().rank_rows(0)
    bank.weights_RD[own] = float("nan")
    spoilt_MD, spoilt_RD = passed(decoder, bank, needed)
    others = slice(len(READS[0]) + len(READS[1]), None)
    assert torch.equal(spoilt_MD[others], clean_MD[others])
    assert spoilt_MD[: len(READS[0])].isnan().any()
    assert torch.equal(spoilt_RD[own.stop :], clean_RD[own.stop :])


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("number", [0, 2, 4, 5])
def test_a_sample_has_the_bits_it_has_alone(tmp_path: Path, number: int, *, use_dora: bool) -> None:
    """In a stream of 32 rows, or of its own length, as between others."""
    decoder = opened(tmp_path, "Llama")
    bank = bank_of(decoder, use_dora=use_dora)
    own_tokens, own_reads = torch.randint(0, 60, (LENGTHS[number],)), np.array(READS[number], dtype=np.int64)

    def gradients(lengths: list[int], slots: list[int], place: int) -> Tensor:
        num_rows, start = max(-(-sum(lengths) // 16) * 16, 32), sum(lengths[:place])
        table = SegmentTable.from_samples(lengths, slots=slots, num_slots=3, num_rows=num_rows)
        offsets = np.cumsum([0, *lengths])
        read = [offsets[each] + (own_reads if each == place else np.arange(4, 7)) for each in range(len(lengths))]
        tokens_T = torch.arange(num_rows) % 50
        tokens_T[start : start + lengths[place]] = own_tokens
        bank.grads_RD.zero_()
        hidden_TD = decoder.forward(
            tokens_T,
            positions_T=torch.cat([torch.arange(length) for length in (*lengths, num_rows - sum(lengths))]),
            attention=PackedAttention(tuple(offsets.tolist())),
            lora=bank.context(table),
            needed=NeededRows.of(table, read),
        )
        (hidden_TD[torch.from_numpy(np.concatenate(read))] ** 2).sum().backward()
        return bank.grads_RD[bank.slot_table().rank_rows(1)].clone()

    alone = gradients([LENGTHS[number]], [1], 0)
    assert torch.equal(gradients([40, LENGTHS[number], 70], [0, 1, 2], 1), alone)
    assert torch.equal(gradients([9, LENGTHS[number]], [0, 1], 1), alone)
