"""Where states move when room is short: device, host, file; the same bits wherever they are."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints import state_writer
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.runs.directory import RunDirectory
from cohort.training.checkpoint import write_state
from cohort.training.trial import TrialState

NUM_BYTES = 3 * 4 * 8 * 4


def state(step: int, *, device: str) -> TrialState:
    weights, exp_avg, exp_avg_sq = (torch.randn(4, 8, device=device) for _ in range(3))
    moments = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return TrialState(adapter=AdapterState(weights=weights, moments=moments), step=step)


def assert_kept(state_store: TrialStateStore, states: list[TrialState]) -> None:
    for trial_id, expected in enumerate(states):
        found = state_store.state(trial_id)
        assert found is not None
        assert found.step == expected.step
        assert found.adapter.tensors.keys() == {"weights", "exp_avg", "exp_avg_sq"}
        for name, tensor in found.adapter.tensors.items():
            assert torch.equal(tensor.cpu(), expected.adapter.tensors[name].cpu())


def test_the_oldest_move_to_files(tmp_path: Path) -> None:
    state_store = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=2 * NUM_BYTES)
    states = [state(step, device="cpu") for step in range(1, 6)]
    for trial_id, one in enumerate(states):
        state_store.put_state(trial_id, one)
    assert_kept(state_store, states)
    assert len(list((tmp_path / "run").rglob("state-*.safetensors"))) == 3


def test_a_best_checkpoint_of_the_same_step_shares_the_states_weights(tmp_path: Path) -> None:
    state_store = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=NUM_BYTES)
    one = state(3, device="cpu")
    state_store.put_best(0, one.adapter.weights.clone(), step=3)
    state_store.put_state(0, one)
    # one state's bytes in all: nothing had to move to a file
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    state_store.forget_state(0)
    kept = state_store.best(0)
    assert kept is not None
    assert torch.equal(kept[0], one.adapter.weights)


@pytest.mark.gpu
def test_the_oldest_move_from_the_device_to_the_host_and_on(tmp_path: Path) -> None:
    state_store = TrialStateStore(
        RunDirectory.create(tmp_path / "run"),
        memory_budget_bytes=2 * NUM_BYTES,
        device_budget_bytes=int(2.4 * NUM_BYTES),
    )
    states = [state(step, device="cuda") for step in range(1, 7)]
    for trial_id, one in enumerate(states):
        state_store.put_state(trial_id, one)
    assert_kept(state_store, states)
    assert len(list((tmp_path / "run").rglob("state-*.safetensors"))) == 2
    state_store.flush()
    assert len(list((tmp_path / "run").rglob("state-*.safetensors"))) == 6


def test_a_spare_state_is_kept_while_there_is_room_and_never_written(tmp_path: Path) -> None:
    state_store = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=2 * NUM_BYTES)
    parked, spare = state(1, device="cpu"), state(2, device="cpu")
    state_store.put_state(0, parked)
    state_store.put_spare(1, spare)
    assert list(state_store.flush()) == ["trials/0000/state-000001.safetensors"]
    # a parked state needs the room: the spare one goes, not the oldest
    state_store.put_state(2, state(3, device="cpu"))
    assert not state_store.reclaim_state(1)
    assert state_store.state(1) is None
    assert_kept(state_store, [parked])


def test_a_spare_state_is_reclaimed(tmp_path: Path) -> None:
    state_store = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=2 * NUM_BYTES)
    one = state(2, device="cpu")
    state_store.put_state(0, one)
    state_store.spare_state(0)
    assert state_store.state(0) is None
    assert state_store.reclaim_state(0)
    assert_kept(state_store, [one])
    state_store.forget_state(0)
    assert not state_store.reclaim_state(0)


def test_the_weights_that_a_trial_begins_with_are_in_checkpoints(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    state_store = TrialStateStore(directory, memory_budget_bytes=NUM_BYTES)
    weights = torch.randn(4, 8)
    state_store.put_start(7, weights)
    files = state_store.flush()
    again = TrialStateStore(directory, memory_budget_bytes=NUM_BYTES)
    again.restore(files)
    found = again.start(7)
    assert found is not None
    assert torch.equal(found, weights)
    assert again.start(6) is None
    assert again.state(7) is None


def test_a_file_that_was_removed_is_written_again_if_its_state_comes_back(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    state_store = TrialStateStore(directory, memory_budget_bytes=NUM_BYTES * 8)
    ten = state(10, device="cpu")
    state_store.put_state(0, ten)
    # begun for a checkpoint that another one took the place of
    state_store.start_files()
    state_store.put_state(0, state(12, device="cpu"))
    state_store.remove_files_except(state_store.flush())
    # put back after an error, the trial comes to the same step again
    state_store.put_state(0, ten)
    (path,) = state_store.flush()
    assert (directory.root / path).is_file()


def test_a_device_that_is_full_waits_for_what_files_are_written_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = Event()

    def waiting(*values: Any, **keys: Any) -> None:
        assert passed.wait(60)
        write_state(*values, **keys)

    def waited_for(running: list[Future[Any]]) -> None:
        # what is left has been counted by now
        passed.set()
        wait(running)

    monkeypatch.setattr(state_writer, "write_state", waiting)
    monkeypatch.setattr(state_writer, "wait", waited_for)
    state_store = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=NUM_BYTES * 8)
    state_store.put_state(0, state(10, device="cpu"))
    names = state_store.start_files()
    assert state_store.leave_device()
    assert state_store.are_written(names)
    assert not state_store.leave_device()
