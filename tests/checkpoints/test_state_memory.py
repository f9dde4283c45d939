"""States leave a GPU before its room is full, and arrive on the host with their bits."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.state_memory import HOST, StateMemory, _Leaving
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.ranks.divided_states.divided_rows import GPU, PartKey
from cohort.training.trial import TrialState
from tests.ranks.divided_states.test_divided_rows import Source
from tests.ranks.divided_states.test_divided_rows import rows as divided

NUM_BYTES = 3 * 4 * 256 * 4


def state(value: float, *, device: str) -> TrialState:
    moments = {name: torch.full((4, 256), value + place, device=device) for place, name in enumerate(("m", "v"), 1)}
    return TrialState(adapter=AdapterState(weights=torch.full((4, 256), value, device=device), moments=moments), step=1)


def test_what_is_on_the_host_stays_as_it_is() -> None:
    memory = StateMemory(device_budget_bytes=0)
    name, one = StoredState(0, StoredStateKind.STATE, 1), state(1.0, device="cpu")
    memory.put(name, one)
    memory.make_room_on_devices()
    assert not memory.leave_devices()
    assert memory.get(name) is one
    assert memory.num_bytes(HOST) == NUM_BYTES
    assert memory.oldest_on_host() == name
    assert memory.pop(name) is one
    assert name not in memory
    assert memory.num_bytes(HOST) == 0


def test_a_budget_moves_until_a_device_was_out_of_memory() -> None:
    memory = StateMemory(device_budget_bytes=100)
    for budget in (50, 100):
        memory.limit_devices(budget)
        assert memory.keeps_on_device
    memory.leave_devices()
    memory.limit_devices(100)
    assert not memory.keeps_on_device


def test_what_is_asked_for_on_its_way_stays_where_it_was() -> None:
    memory = StateMemory(device_budget_bytes=0)
    name, one = StoredState(0, StoredStateKind.STATE, 1), state(1.0, device="cpu")
    memory._set(name, _Leaving(one, Future()))
    assert memory.get(name) is one
    assert memory.pop(name) is one


def test_a_state_whose_copy_failed_is_still_where_it_was() -> None:
    memory = StateMemory(device_budget_bytes=0)
    name, one, failed = StoredState(0, StoredStateKind.STATE, 1), state(1.0, device="cpu"), Future[dict[str, Tensor]]()
    failed.set_exception(RuntimeError("cannot allocate memory"))
    memory.put(name, one)
    memory._set(name, _Leaving(one, failed))
    with pytest.raises(RuntimeError, match="cannot allocate"):
        memory.make_room_on_devices()
    assert memory.get(name) is one
    memory._set(name, _Leaving(one, failed))
    assert memory.get(name) is one


@pytest.mark.gpu
def test_the_oldest_leave_a_gpu_and_spare_states_before_them() -> None:
    memory = StateMemory(device_budget_bytes=int(3.5 * NUM_BYTES))
    names = [StoredState(trial_id, StoredStateKind.STATE, 1) for trial_id in range(6)]
    spare = StoredState(9, StoredStateKind.SPARE, 1)
    gpu = torch.device("cuda", torch.cuda.current_device())
    for place, name in enumerate(names):
        memory.put(name, state(10.0 * place, device="cuda"))
        if place == 1:
            memory.put(spare, state(5.0, device="cuda"))
        memory.make_room_on_devices()
        assert memory.num_bytes(gpu) <= 3.5 * NUM_BYTES
    assert spare not in memory
    places = []
    for place, name in enumerate(names):
        found = memory.get(name)
        assert isinstance(found, TrialState)
        expected = state(10.0 * place, device="cpu").adapter
        assert torch.equal(found.adapter.weights.cpu(), expected.weights)
        for moment, tensor in found.adapter.moments.items():
            assert torch.equal(tensor.cpu(), expected.moments[moment])
        places.append(found.adapter.weights.device.type)
    assert places == ["cpu"] * 3 + ["cuda"] * 3
    assert memory.leave_devices()
    assert memory.num_bytes(gpu) == 0
    assert not memory.keeps_on_device


def test_parts_on_ranks_leave_their_gpus_as_states_leave_one() -> None:
    source, gone, memory = Source(), list[PartKey](), StateMemory(device_budget_bytes=270)
    names = [StoredState(trial_id, StoredStateKind.BEST, 1) for trial_id in range(3)]
    for number, name in enumerate(names):
        # each 90 bytes of each GPU, 170 of the host
        memory.put(name, divided(source, gone, number=number))
        memory.make_room_on_devices()
    # within the last eighth of the room the oldest begins to leave, and nothing waits for it
    assert source.leaving == [(0, "weights")]
    assert not source.left
    assert (memory.num_bytes(GPU), memory.num_bytes(HOST)) == (270, 90)
    source.left += source.leaving
    memory.make_room_on_devices()
    assert (memory.num_bytes(GPU), memory.num_bytes(HOST)) == (180, 170)
    assert memory.oldest_on_host() == names[0]
    assert memory.leave_devices()
    assert memory.num_bytes(GPU) == 0
    assert memory.num_bytes(HOST) == 3 * 170
    for name in names:
        memory.forget(name)
    assert sorted(gone) == [(number, "weights") for number in range(3)]
