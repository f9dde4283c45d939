"""What a recorded pass reads is the stream of its samples, padded by rows that train nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import UNTRAINED, SlotSample, lay_out
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.segments import SegmentTable
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.pass_tensors import PassTensors
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from tests.training.small_models import compared_rows

SHAPE = PassShape(num_rows=128, num_sequences=4, length=64, num_trained=64)


@pytest.mark.parametrize("pads_attention", [False, True])
def test_a_filling_leaves_nothing_of_the_one_before(pads_attention: bool) -> None:
    bank = AdapterBank(AdapterLayout({"layers.0.q_proj": (8, 8)}), num_slots=2, num_rank_rows=32)
    slot = bank.insert(AdapterSpec(r=4, lora_alpha=4.0), AdapterState(weights=torch.zeros(4, bank.layout.width)))
    rows = compared_rows(6, seed=1)
    tensors = PassTensors(SHAPE, bank=bank, slots=bank.slot_table(), pads_attention=pads_attention)
    for row_ids in ([0, 1, 2], [3]):
        entries = [SlotSample(slot=slot, sample=rows.sample(row_id)) for row_id in row_ids]
        stream = lay_out(entries, num_slots=bank.num_slots, num_rows=SHAPE.num_rows)
        tensors.fill(stream, slots=bank.slot_table(), divisors={slot: 4}, fresh_slots=())
        assert tensors.batch.tokens_T.tolist() == stream.tokens.tolist()
        assert tensors.batch.targets_T.tolist() == stream.targets.tolist()
        is_trained = torch.tensor(stream.targets != UNTRAINED)
        # the rows that are trained weigh a quarter each, and those that fill the shape nothing
        assert torch.equal(tensors.weights_T, is_trained * 0.25)
        trained = tensors.batch.trained_rows_M.tolist()
        assert trained[: is_trained.sum()] == is_trained.nonzero().flatten().tolist()
        assert set(trained[is_trained.sum() :]) == {SHAPE.num_rows - 1}


def test_keys_of_dropped_rows_are_filled_and_a_measuring_pass_knows_no_dropout() -> None:
    bank = AdapterBank(AdapterLayout({"layers.0.q_proj": (8, 8)}), num_slots=2, num_rank_rows=32)
    adapter = AdapterSpec(r=4, lora_alpha=4.0, lora_dropout=0.25)
    slot = bank.insert(adapter, AdapterState(weights=torch.zeros(4, bank.layout.width)))
    rows = compared_rows(6, seed=1)
    sample = rows.sample(0)
    keys = np.arange(7, 7 + len(sample.tokens))
    entries = {True: SlotSample(slot=slot, sample=sample, row_keys=keys), False: SlotSample(slot=slot, sample=sample)}
    for drops in (True, False):
        tensors = PassTensors(SHAPE, bank=bank, slots=bank.slot_table(), pads_attention=False, drops=drops)
        assert tensors.lora.row_keys_T is tensors.batch.row_keys_T
        tables: Any = tensors.lora.tables
        assert tables.has_dropout is drops
        # with keys, and then without: a step's pass may hold trials without dropout alone
        for keyed in (True, False) if drops else (False,):
            stream = lay_out([entries[keyed]], num_slots=bank.num_slots, num_rows=SHAPE.num_rows)
            tensors.fill(stream, slots=bank.slot_table(), divisors={slot: 1}, fresh_slots=())
            found = tensors.batch.row_keys_T
            if found is None:
                assert not drops
            else:
                assert found[: len(keys)].tolist() == (keys.tolist() if keyed else [0] * len(keys))
                assert found[len(keys) :].tolist() == [0] * (SHAPE.num_rows - len(keys))


@pytest.mark.parametrize(("from_terms", "drops"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_training_kind_says_what_its_passes_read(from_terms: bool, drops: bool) -> None:
    kind = GraphKind.of_training(from_terms=from_terms, drops=drops)
    assert (kind.trains, kind.has_terms, kind.drops) == (True, from_terms, drops)
    assert not GraphKind.MEASURES.trains


@pytest.mark.parametrize("is_exact", [False, True])
def test_rows_that_losses_read_have_tables_of_their_own(is_exact: bool) -> None:
    bank = AdapterBank(AdapterLayout({"layers.0.q_proj": (8, 8)}), num_slots=2, num_rank_rows=32)
    bank.is_exact = is_exact
    for r in (4, 3):
        bank.insert(AdapterSpec(r=r, lora_alpha=4.0), AdapterState(weights=torch.zeros(r, bank.layout.width)))
    slots, rows = bank.slot_table(), compared_rows(6, seed=1)
    assert PassTensors(SHAPE, bank=bank, slots=slots, pads_attention=False).needed is None
    tensors = PassTensors(SHAPE, bank=bank, slots=slots, pads_attention=False, leaves_out_rows=True)
    needed = tensors.needed
    assert needed is not None
    assert needed.rows_M is tensors.batch.trained_rows_M
    # any of them may be used in a later pass
    assert needed.num_used == needed.segments.num_rows == SHAPE.num_trained
    for row_ids in ([0, 1, 2], [3]):
        entries = [SlotSample(slot=int(place > 0), sample=rows.sample(row)) for place, row in enumerate(row_ids)]
        stream = lay_out(entries, num_slots=2, num_rows=SHAPE.num_rows)
        tensors.fill(stream, slots=slots, divisors={0: 4, 1: 4}, fresh_slots=(0, 1))
        counts = [int(entry.sample.trained[1:].sum()) for entry in entries]
        expected = LaunchTables(
            SegmentTable.from_samples(
                counts, slots=[entry.slot for entry in entries], num_slots=2, num_rows=SHAPE.num_trained
            ),
            slots,
            device="cpu",
            exact=is_exact,
            fresh_slots=(0, 1),
        )
        tables: Any = needed.tables
        for found, own in zip(tables.passes, expected.passes, strict=True):
            for name in ("tiles", "chunks", "sums", "slots"):
                entries_of, its = (getattr(each, name).tolist() for each in (found, own))
                assert entries_of[: 1 + entries_of[0][0]] == its[: 1 + its[0][0]]
