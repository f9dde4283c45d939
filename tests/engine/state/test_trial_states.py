"""Where states move when room is short: device, host, file; the same bits wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.bank import AdapterState
from cohort.engine.state.trial_states import TrialStateStore
from cohort.runs.directory import RunDirectory
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
        RunDirectory.create(tmp_path / "run"), memory_budget_bytes=2 * NUM_BYTES, device_budget_bytes=2 * NUM_BYTES
    )
    states = [state(step, device="cuda") for step in range(1, 7)]
    for trial_id, one in enumerate(states):
        state_store.put_state(trial_id, one)
    assert_kept(state_store, states)
    assert len(list((tmp_path / "run").rglob("state-*.safetensors"))) == 2
    state_store.flush()
    assert len(list((tmp_path / "run").rglob("state-*.safetensors"))) == 6
