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
