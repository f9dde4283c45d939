"""One task's run between two steps: requests, callbacks and replays; whole runs are tested end to end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, RunStateError
from cohort.core.events import Evaluated, TrialFailed
from cohort.engine.run_start import begun_run, new_directory, prepare_task
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.task_run import TaskRun
from cohort.memory.sizes import SizeRequest
from cohort.prepare.preparation import Preparation
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.interventions import FROM_STEP, FROM_TRIAL
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.engine.train.fakes import FakeExecutor, Notes
from tests.runs.log_entries import step_done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("task_run"))


class Begun:
    """A run of six trials that has begun, on an executor that only counts."""

    def __init__(self, folder: Path, run: OpenRun, preparation: Preparation) -> None:
        self.folder, self.run, self.preparation = folder, run, preparation
        clock: Any = run.clock
        self.executor = FakeExecutor(clock)
        self.executor.num_recomputed = 0  # type: ignore[attr-defined]
        self.task_run = self.joined(preparation)

    def joined(self, preparation: Preparation) -> TaskRun:
        executor: Any = self.executor
        return TaskRun(preparation, ExecutorShare(executor, rows=preparation.inputs.data.train), self.run)

    def again(self) -> TaskRun:
        """The run as another process finds it."""
        return self.joined(prepared(self.folder))

    def ask(self, kind: RequestKind, trial_id: int | None = None, **keys: Any) -> None:
        request = TrialRequest(kind=kind, trial_id=trial_id, who="ada", at="noon", **keys)
        self.task_run.control.submit(request)
        self.task_run.between_steps()

    @property
    def notes(self) -> list[str]:
        assert isinstance(self.run.watcher, Notes)
        return self.run.watcher.notes

    def decisions(self) -> list[tuple[int, DecisionKind]]:
        found = [entry.decision for entry in self.run.store.reader.log.decisions()]
        return [(decision.trial_id, decision.kind) for decision in found]


def prepared(folder: Path) -> Preparation:
    return prepare_task(tiny_task(folder), watcher=Notes(), clock=ManualClock(), request=SizeRequest())


@pytest.fixture
def begun(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begun]:
    # sizes are chosen by the memory that is free then; over all that other tests left it would take a second
    monkeypatch.setattr("gc.collect", lambda: 0)
    preparation = prepared(folder)
    with (
        new_directory(tmp_path / "run", preparation.task) as directory,
        begun_run(preparation, directory, watcher=Notes(), options=RunOptions(), clock=ManualClock()) as run,
    ):
        yield Begun(folder, run, preparation)


def test_what_people_ask_is_done_recorded_and_known_as_done(begun: Begun) -> None:
    begun.ask(RequestKind.KEEP, 2)
    begun.ask(RequestKind.STOP, 3)
    assert begun.decisions() == [(2, DecisionKind.PROTECT), (3, DecisionKind.STOP)]
    assert any(note.startswith("stop") and "ada, noon" in note for note in begun.notes)
    request = TrialRequest(kind=RequestKind.STOP, trial_id=3, who="ada", at="noon")
    assert begun.task_run._is_done(request)
    later = TrialRequest(kind=RequestKind.STOP, trial_id=3, who="ada", at="one o'clock")
    assert not begun.task_run._is_done(later)
    # what cannot be done is a note, and changes nothing
    begun.ask(RequestKind.STOP, 99)
    begun.ask(RequestKind.CLONE, 0, warm_start=True)
    assert len(begun.decisions()) == 2
    warned = [note for note in begun.notes if note.startswith("warning: ada asked to")]
    assert ["trial 99" in warned[0], "no checkpoint" in warned[1], len(warned)] == [True, True, 2]


def test_a_new_trial_has_a_number_that_no_search_proposes(begun: Begun) -> None:
    begun.ask(RequestKind.ADD, values={"learning_rate": 0.5, "r": 2})
    begun.ask(RequestKind.CLONE, 0, values={"learning_rate": 0.25})
    assert begun.decisions() == [(6, DecisionKind.ADD), (7, DecisionKind.ADD)]
    trials = begun.run.store.reader.trials()
    assert [trial.trial_id for trial in trials] == list(range(8))
    assert (trials[6].parameters["learning_rate"], trials[6].planned_steps) == (0.5, 8)
    assert trials[7].parameters["r"] == trials[0].parameters["r"]
    assert 7 in begun.task_run._study.trial_ids


def test_a_warm_clone_begins_with_the_best_of_its_trial(begun: Begun) -> None:
    study, states = begun.task_run._study, begun.run.state_store
    study.start(0)
    due = study.next_evaluation(0)
    assert due is not None
    events = [step_done(0, step) for step in range(1, due + 1)]
    for event in events:
        study.observe(event)
    evaluated = Evaluated(trial_id=0, step=due, validation_loss=1.0)
    begun.run.store.append([*events, evaluated], study.observe(evaluated))
    best = torch.full((2, 4), 0.5)
    states.put_best(0, best, step=due)
    begun.ask(RequestKind.CLONE, 0, values={"learning_rate": 0.25}, warm_start=True)
    start = states.start(6)
    assert start is not None
    assert torch.equal(start, best)
    added = begun.run.store.reader.log.decisions()[-1].decision
    assert (added.trial_id, dict(added.numbers)) == (6, {"number": 1, FROM_TRIAL: 0, FROM_STEP: due})


def test_another_process_replays_what_was_recorded(begun: Begun) -> None:
    begun.ask(RequestKind.ADD, values={"learning_rate": 0.5})
    begun.ask(RequestKind.STOP, 1)
    before = begun.task_run._study
    resumed = begun.again()
    assert 6 not in resumed._study.trial_ids
    resumed.replay()
    assert resumed._study.decisions == before.decisions
    assert resumed._study.trial_ids == before.trial_ids
    assert resumed._specs[6] == begun.task_run._specs[6]


def test_a_record_that_the_events_do_not_lead_to_is_refused(begun: Begun) -> None:
    failed = TrialFailed(trial_id=1, step=0, message="a bad row")
    decisions = begun.task_run._study.observe(failed)
    # recorded without the event it follows from
    begun.run.store.append([], decisions)
    with pytest.raises(RunStateError, match="was recorded as"):
        begun.again().replay()


def test_a_search_that_a_callback_ended_stays_ended_up_to_where_it_was_ended(begun: Begun) -> None:
    position = begun.run.store.reader.log.last_position()
    begun.run.store.set_facts(search_ended="stopped by on_step", search_ended_at=position)
    resumed = begun.again()
    resumed.replay()
    assert begun.run.store.reader.facts().search_ended == "stopped by on_step"
    # the steps that led to it come after the checkpoint, and are repeated
    begun.run.store.set_facts(search_ended_at=position + 5)
    begun.again().replay()
    facts = begun.run.store.reader.facts()
    assert (facts.search_ended, facts.search_ended_at) == (None, None)


def test_the_base_model_is_measured_once_and_refused_without_a_finite_loss(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = EvaluationLoss(loss=math.nan, num_tokens=8, terms=(math.nan,), divisors=(1,))
    monkeypatch.setattr(begun.task_run._share, "evaluate_base", lambda **_: broken)
    with pytest.raises(InputError, match=r"validation loss is nan .*all of its weights are finite, so .* float32"):
        begun.task_run.measure_base()
    weights = load_file(begun.folder / "model" / "model.safetensors")
    names = sorted(weights)[:5]
    for name in names:
        weights[name] = torch.full_like(weights[name], math.inf)
    save_file(weights, tmp_path / "model.safetensors")
    object.__setattr__(begun.preparation.inputs, "model_directory", tmp_path)
    with pytest.raises(InputError, match=r"NaN or infinite weights in .* and 2 more.*Fetch its files again"):
        begun.task_run.measure_base()
    assert begun.run.store.reader.facts().base_metrics is None
    measured: list[float] = []

    def evaluate_base(**_: Any) -> EvaluationLoss:
        measured.append(2.5)
        return EvaluationLoss(loss=2.5, num_tokens=8, terms=(2.5,), divisors=(1,))

    monkeypatch.setattr(begun.task_run._share, "evaluate_base", evaluate_base)
    for _ in range(2):
        begun.task_run.measure_base()
    assert measured == [2.5]
    base = begun.run.store.reader.facts().base_metrics
    assert base is not None
    assert base["loss"] == 2.5
