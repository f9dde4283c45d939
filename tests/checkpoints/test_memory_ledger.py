"""Bytes are counted once for each address, by device, and back to nothing."""

from __future__ import annotations

import torch

from cohort.adapters.bank import AdapterState
from cohort.checkpoints.memory_ledger import MemoryLedger, Room
from cohort.training.trial import TrialState

CPU = torch.device("cpu")


def test_weights_that_two_share_count_once_until_both_are_gone() -> None:
    weights = torch.zeros(4, 8)
    state = Room.of(TrialState(adapter=AdapterState(weights=weights, moments={"m": torch.zeros(4, 8)}), step=1))
    best, taken = Room.of(weights), MemoryLedger()
    assert (state.num_bytes, best.num_bytes) == (256, 128)
    taken.add(state)
    taken.add(best)
    assert taken.on(CPU) == 256
    assert taken.devices == {CPU}
    taken.remove(state)
    assert taken.on(CPU) == 128
    taken.remove(best)
    assert taken.on(CPU) == 0
    assert taken.devices == set()
