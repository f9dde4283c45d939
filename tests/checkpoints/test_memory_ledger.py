"""Bytes are counted once for each address, by device, and back to nothing."""

from __future__ import annotations

import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.memory_ledger import MemoryLedger, Room
from cohort.ranks.divided_states.divided_rows import GPU, DividedRows, Placement
from cohort.training.trial import TrialState
from tests.ranks.divided_states.test_divided_rows import SPEC, Source

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


def test_parts_on_ranks_count_once_by_their_key_on_the_gpus_of_all() -> None:
    def rows(name: str, *, device: torch.device) -> DividedRows:
        return DividedRows.kept(
            (3, name),
            shape=(4, 8),
            dtype=torch.float32,
            spec=SPEC,
            source=Source(),
            placement=Placement(device=device, gpu_bytes=70, host_bytes=130),
            let_go=lambda key: None,
        )

    weights, taken = rows("weights", device=GPU), MemoryLedger()
    state = Room.of(TrialState(adapter=AdapterState(weights=weights, moments={"m": rows("m", device=GPU)}), step=1))
    best = Room.of(weights)
    assert (state.device, state.num_bytes, best.num_bytes) == (GPU, 140, 70)
    # a file has the whole rows
    assert (state.file_bytes, best.file_bytes) == (256, 128)
    taken.add(state)
    taken.add(best)
    assert (taken.on(GPU), taken.on(CPU)) == (140, 0)
    taken.remove(state)
    assert taken.on(GPU) == 70
    left = Room.of(weights.on_host())
    assert (left.device, left.num_bytes) == (CPU, 130)
