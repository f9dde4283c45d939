"""Requests about trials are checked against the run as it stands: every reason at once, and nothing is changed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem
from cohort.core.events import Evaluated
from cohort.runs.database import open_database
from cohort.runs.fact_groups import InputFacts, SizeFacts
from cohort.runs.facts import RunState
from cohort.runs.records import TrialRecord
from cohort.runs.requests.request_checks import CheckedRequest, check_request, recorded_value
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.runs.store import RunStore
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.task_file import TaskFile
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.interventions import ADDED_BY_USER, FROM_STEP, FROM_TRIAL, KEPT_BY_USER, USER
from tests.runs.log_entries import decided, step_done
from tests.runs.synthetic_run import new_best

PARAMETERS = {"learning_rate": 1e-3, "r": 4, "lora_alpha": 8, "batch_size": 2}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskFile:
    folder = tmp_path_factory.mktemp("task")
    (folder / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "model").mkdir()
    data = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl"},
        "lora": {"lora_alpha": "2r"},
        "training": {"batch_size": 2},
        "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [4, 8]}},
    }
    return task_from_mapping(data, base_directory=folder)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four trials: 0 was evaluated, 1 was stopped by a rule, 2 has a loss that is NaN, 3 is complete."""
    path = tmp_path_factory.mktemp("record") / "run.db"
    store = RunStore.create(path)
    store.add_trials(
        [
            TrialRecord(
                trial_id=n, parameters={**PARAMETERS, "learning_rate": 10.0 ** -(n + 3)}, planned_steps=4, seed=n
            )
            for n in range(4)
        ]
    )
    evaluated = Evaluated(trial_id=0, step=1, validation_loss=1.0)
    stop, finish = DecisionKind.STOP, DecisionKind.FINISH
    store.append([*(step_done(n, 1) for n in (0, 1, 3)), step_done(2, 1, math.nan), evaluated], [new_best(evaluated)])
    store.append(
        [],
        [
            decided(1, 1, stop, Reason("underperforming")),
            decided(2, 1, stop, Reason("non-finite")),
            decided(3, 1, finish, Reason("completed")),
        ],
    )
    store.close()
    return path


@pytest.fixture
def store(record: Path, tmp_path: Path) -> Iterator[RunStore]:
    """The record, for a test to change; a copy costs less than the waits for the disk while it is made."""
    store = RunStore(open_database(Path(shutil.copy(record, tmp_path)), read_only=False), clock=ManualClock())
    yield store
    store.close()


def checked(store: RunStore, task: TaskFile, kind: str, trial_id: int | None = None, **request: Any) -> CheckedRequest:
    asked = TrialRequest(kind=RequestKind(kind), trial_id=trial_id, **request)
    return check_request(asked, reader=store.reader, task=task)


def refused(store: RunStore, task: TaskFile, *args: Any, **request: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        checked(store, task, *args, **request)
    return list(caught.value.problems)


@pytest.mark.parametrize(("kind", "trial_id"), [("stop", 0), ("keep", 0), ("resume", 1)])
def test_what_can_be_done_names_its_trial(store: RunStore, task: TaskFile, kind: str, trial_id: int) -> None:
    found = checked(store, task, kind, trial_id)
    assert found.trial is not None
    assert (found.trial.trial_id, dict(found.parameters)) == (trial_id, {})


@pytest.mark.parametrize(
    ("kind", "trial_id", "found", "hint"),
    [
        ("stop", 3, "trial 3, which is completed after 1 of 4 steps", "nothing left"),
        ("stop", 1, "trial 1, which is stopped (underperforming)", "nothing left"),
        ("keep", 1, "trial 1, which is stopped (underperforming)", "Resume it first: `cohort trials RUN_DIR resume 1`"),
        ("keep", 3, "trial 3, which is completed", "nothing left"),
        ("resume", 0, "trial 0, which is parked after 1 of 4 steps", "Choose a trial that was stopped"),
        # its weights are NaN
        ("resume", 2, "trial 2, which is stopped (non-finite)", "Train a copy of it: `cohort trials RUN_DIR clone 2`"),
        ("resume", 3, "trial 3, which is completed", "clone 3"),
        ("stop", 9, "trial 9", "List them"),
        ("clone", 9, "trial 9", "List them"),
    ],
)
def test_what_cannot_be_done_says_how_the_trial_stands(
    store: RunStore, task: TaskFile, kind: str, trial_id: int, found: str, hint: str
) -> None:
    (problem,) = refused(store, task, kind, trial_id)
    assert str(problem.where) == f"cohort trials {kind}"
    assert found in problem.found
    assert hint in problem.hint


def test_numbers_with_a_gap_are_listed(store: RunStore, task: TaskFile) -> None:
    assert refused(store, task, "stop", 7)[0].allowed == "a trial of this run: 0 to 3"
    store.add_trials([TrialRecord(trial_id=6, parameters=PARAMETERS, planned_steps=4, seed=6)])
    assert refused(store, task, "stop", 5)[0].allowed == "a trial of this run: 0, 1, 2, 3, 6"


def test_a_trial_is_kept_once(store: RunStore, task: TaskFile) -> None:
    protect = Decision(trial_id=0, step=1, kind=DecisionKind.PROTECT, reason=KEPT_BY_USER, rule=USER)
    store.append([], [protect])
    (problem,) = refused(store, task, "keep", 0)
    assert (problem.found, problem.hint) == ("trial 0 again", "It is kept already.")


def test_a_run_that_has_ended_takes_no_request(store: RunStore, task: TaskFile) -> None:
    store.set_facts(state=RunState.INTERRUPTED)
    checked(store, task, "stop", 0)
    store.set_facts(state=RunState.DONE)
    for kind, trial_id in (("stop", 0), ("add", None)):
        (problem,) = refused(store, task, kind, trial_id)
        assert "have all ended" in problem.found


def test_a_clone_has_the_values_of_its_trial_but_for_those_given(store: RunStore, task: TaskFile) -> None:
    found = checked(store, task, "clone", 1, values={"r": 8})
    # lora_alpha is 2r in the task, so it follows the new r
    assert dict(found.parameters) == {"learning_rate": 1e-4, "r": 8, "lora_alpha": 16, "batch_size": 2}
    new = checked(store, task, "add", values={"learning_rate": 0.5})
    assert (new.trial, new.parameters["learning_rate"], new.parameters["batch_size"]) == (None, 0.5, 2)


def test_a_trial_that_would_train_to_the_same_bits_is_refused(store: RunStore, task: TaskFile) -> None:
    (problem,) = refused(store, task, "clone", 1)
    assert problem.found == "the hyperparameters of trial 1"
    assert "--seed 1" in problem.hint
    # from other weights the same values lead elsewhere
    assert checked(store, task, "clone", 0, warm_start=True).parameters["r"] == 4
    assert checked(store, task, "clone", 1, values={"seed": 3}).parameters["seed"] == 3


def test_a_warm_clone_does_not_stand_for_the_same_trial_from_the_start(store: RunStore, task: TaskFile) -> None:
    values = {"learning_rate": 0.5}
    store.add_trials([TrialRecord(trial_id=4, parameters={**PARAMETERS, **values}, planned_steps=4, seed=0)])
    assert refused(store, task, "clone", 0, values=values)[0].found == "the hyperparameters of trial 4"
    numbers = {FROM_TRIAL: 0, FROM_STEP: 1}
    kind = DecisionKind.ADD
    store.append([], [Decision(trial_id=4, step=0, kind=kind, reason=ADDED_BY_USER, rule=USER, numbers=numbers)])
    assert checked(store, task, "clone", 0, values=values).parameters["learning_rate"] == 0.5


def test_a_warm_start_needs_a_checkpoint_and_its_rank(store: RunStore, task: TaskFile) -> None:
    (cold,) = refused(store, task, "clone", 3, warm_start=True, values={"learning_rate": 0.5})
    assert "trial 3, which has no checkpoint with a finite loss yet" in cold.found
    (other_rank,) = refused(store, task, "clone", 0, warm_start=True, values={"r": 8})
    assert (str(other_rank.where), other_rank.allowed) == ("--r", "4, as trial 0 has")
    assert len(refused(store, task, "clone", 3, warm_start=True, values={"r": 8})) == 2


def test_a_rank_beyond_the_bank_is_refused(store: RunStore, task: TaskFile) -> None:
    assert checked(store, task, "clone", 0, values={"r": 64}).parameters["r"] == 64, "of old runs no size is known"
    store.set_facts(sizes=SizeFacts(num_slots=2, rank_rows=16))
    assert checked(store, task, "clone", 0, values={"r": 8}).parameters["r"] == 8
    (problem,) = refused(store, task, "clone", 0, values={"r": 64})
    assert problem.allowed == "at most 16, the rank rows that this run has memory for"
    # whole modules begin behind the last tile of 16
    store.set_facts(inputs=InputFacts(whole_modules={"entries": 1, "rank_rows": 1}))
    (problem,) = refused(store, task, "clone", 0, values={"r": 8})
    assert problem.found == "17"


def test_recorded_values_are_plain() -> None:
    assert [recorded_value(value) for value in (1, 0.5, "cosine", True)] == [1, 0.5, "cosine", True]
    with pytest.raises(AssertionError, match="a number, a word or a switch"):
        recorded_value(["q_proj"])
