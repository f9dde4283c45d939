"""What a recorded pass reads is the stream of its samples, padded by rows that train nothing."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import UNTRAINED, SlotSample, lay_out
from cohort.training.cuda_graphs.pass_tensors import PassTensors
from cohort.training.cuda_graphs.recorded_shapes import PassShape
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
