"""What people ask of trials is carried out, recorded, and known as done."""

from __future__ import annotations

import torch

from cohort.core.events import Evaluated
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.interventions import FROM_STEP, FROM_TRIAL
from tests.engine.train.begun_task import Begun
from tests.runs.log_entries import step_done


def test_what_people_ask_is_done_recorded_and_known_as_done(begun: Begun) -> None:
    begun.ask(RequestKind.KEEP, 2)
    begun.ask(RequestKind.STOP, 3)
    assert begun.decisions() == [(2, DecisionKind.PROTECT), (3, DecisionKind.STOP)]
    assert any(note.startswith("stop") and "ada, noon" in note for note in begun.notes)
    request = TrialRequest(kind=RequestKind.STOP, trial_id=3, who="ada", at="noon")
    assert begun.task_run._changes.is_done(request)
    later = TrialRequest(kind=RequestKind.STOP, trial_id=3, who="ada", at="one o'clock")
    assert not begun.task_run._changes.is_done(later)
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
    begun.ask(RequestKind.ADD, values={"learning_rate": 0.125, "r": 2})
    assert begun.decisions()[-1] == (8, DecisionKind.ADD)


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
