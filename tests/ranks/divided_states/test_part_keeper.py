"""A rank goes on from its own part of a state: the bits of a trial that never left the bank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.events import StepDone
from cohort.training.trial import TrialState
from tests.ranks.tensor.divided_models import save_divided_qwen2
from tests.ranks.tensor.test_sharded_executor import TRIALS, tensor_executor
from tests.ranks.tensor.thread_group import ThreadGroup, run_threads

FLOAT32 = torch.float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_divided_qwen2(folder)
    return folder


@pytest.mark.parametrize("size", [1, 2])
def test_parked_trials_go_on_as_if_they_had_stayed(folder: Path, size: int) -> None:
    def trained(group: ThreadGroup, *, parks: bool) -> tuple[list[StepDone], list[TrialState]]:
        executor = tensor_executor(group, folder, FLOAT32)
        for spec in TRIALS:
            executor.load(spec)
        events = [*executor.step(), *executor.step()]
        if parks:
            kept = {spec.trial_id: executor.keep_state(spec.trial_id, spec.trial_id, False) for spec in TRIALS}
            for spec in TRIALS:
                executor.drop(spec.trial_id)
            for spec in TRIALS:
                own = kept[spec.trial_id]
                keys = {name: (spec.trial_id, name) for name in own.num_bytes}
                executor.load_kept(spec, keys, own.step, None)
                executor.forget_parts([*keys.values()])
            assert not len(executor.shelf)
        events += [*executor.step(), *executor.step()]
        return events, [executor.state(spec.trial_id) for spec in TRIALS]

    parked = run_threads(size, lambda group: trained(group, parks=True))
    stayed = run_threads(size, lambda group: trained(group, parks=False))
    for (own_events, own_states), (events, states) in zip(parked, stayed, strict=True):
        assert own_events == events
        for own, state in zip(own_states, states, strict=True):
            assert own.step == state.step
            assert all(torch.equal(own.adapter.tensors[name], each) for name, each in state.adapter.tensors.items())


def test_best_weights_are_a_copy_that_steps_do_not_change(folder: Path) -> None:
    def kept(group: ThreadGroup) -> bool:
        executor = tensor_executor(group, folder, FLOAT32)
        executor.load(TRIALS[0])
        executor.step()
        before = executor.weights(0)
        assert executor.keep_weights(0, 5, False).num_bytes == {"weights": before.numel() * 4}
        executor.step()
        assert executor.have_left([(5, "weights")])
        return torch.equal(executor.part((5, "weights")), before) and not torch.equal(executor.weights(0), before)

    assert run_threads(2, kept) == [True, True]
