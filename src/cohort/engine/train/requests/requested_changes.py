"""What people ask of a run's trials, carried out: a trial is stopped, resumed, kept, cloned or added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cohort.core.errors import InputError, Problem
from cohort.engine.train.open_run import OpenRun
from cohort.prepare.preparation import Preparation
from cohort.prepare.trials import PlannedTrial, plan_added_trial
from cohort.runs.requests.request_checks import CheckedRequest, check_request, recorded_value
from cohort.runs.requests.trial_requests import Answer, RequestKind, TrialRequest
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.interventions import FROM_STEP, FROM_TRIAL, USER, Intervention
from cohort.tuning.parameters import Value
from cohort.tuning.study import Study

__all__ = ["RequestedChanges"]

_DECISION_OF = {
    RequestKind.STOP: DecisionKind.STOP,
    RequestKind.RESUME: DecisionKind.RESUME,
    RequestKind.KEEP: DecisionKind.PROTECT,
    RequestKind.CLONE: DecisionKind.ADD,
    RequestKind.ADD: DecisionKind.ADD,
}
_DONE = {
    RequestKind.STOP: "trial {trial} stopped after step {step}; its best checkpoint still counts",
    RequestKind.RESUME: "trial {trial} continues after step {step}; no exit rule stops it again",
    RequestKind.KEEP: "trial {trial} is kept: no exit rule stops it from step {step} on",
}


class RequestedChanges:
    """Carries out requests about the trials of one run between two steps."""

    def __init__(
        self,
        preparation: Preparation,
        run: OpenRun,
        *,
        study: Study,
        intervene: Callable[[Intervention], None],
        take_in: Callable[[Sequence[PlannedTrial]], None],
    ) -> None:
        """Carry out requests for ``run``.

        Args:
            preparation: The task's.
            run: Where it is recorded.
            study: The task's.
            intervene: Does what is asked of a trial, and records it.
            take_in: Adds trials to everything that knows them.
        """
        self._preparation, self._run, self._study = preparation, run, study
        self._intervene, self._take_in = intervene, take_in

    def planned_again(self, trial_id: int) -> PlannedTrial:
        """Plan a trial that a person added, as its record shows it."""
        parameters = self._run.store.reader.trial(trial_id).parameters
        return self._planned(trial_id, {name: recorded_value(value) for name, value in parameters.items()})

    def _planned(self, trial_id: int, parameters: Mapping[str, Value]) -> PlannedTrial:
        preparation = self._preparation
        return plan_added_trial(
            preparation.task,
            trial_id,
            parameters,
            rows=preparation.inputs.data.train,
            times=preparation.proposals.times,
            saved=preparation.inputs.saved_modules(preparation.task),
            start=preparation.inputs.start,
        )

    def carry_out(self, request: TrialRequest) -> Answer:
        """Do what a person asks of a trial, and record it.

        Raises:
            InputError: it cannot be done.
        """
        # a second time: since the person was answered, the trial may have ended
        checked = check_request(request, reader=self._run.store.reader, task=self._preparation.task)
        self._run.watcher.note(f"{request.described}: {request.signature}")
        if request.kind in (RequestKind.CLONE, RequestKind.ADD):
            return self._add(request, checked)
        assert request.trial_id is not None, "check_request() refuses a request about no trial"
        kind = _DECISION_OF[request.kind]
        self._intervene(Intervention(trial_id=request.trial_id, kind=kind, message=request.signature))
        step = self._study.trajectory(request.trial_id).num_steps
        return Answer(text=_DONE[request.kind].format(trial=request.trial_id, step=step), trial_id=request.trial_id)

    def _add(self, request: TrialRequest, checked: CheckedRequest) -> Answer:
        """Add a trial; its number is larger than any that the search may propose."""
        trial_id = max(self._preparation.proposals.most_trials, *(number + 1 for number in self._study.trial_ids))
        planned, numbers, start = self._planned(trial_id, checked.parameters), dict[str, float](), ""
        if request.warm_start:
            assert checked.trial is not None, "only a clone has another trial's weights to begin with"
            best = self._run.state_store.best(checked.trial.trial_id)
            if best is None:
                raise InputError(_not_kept(checked.trial.trial_id))
            # a copy of its own: the other trial trains on, and its best checkpoint may be another one soon
            self._run.state_store.put_start(trial_id, best[0])
            numbers = {FROM_TRIAL: checked.trial.trial_id, FROM_STEP: best[1]}
            start = f" from the weights of trial {checked.trial.trial_id} after step {best[1]}"
        self._run.store.add_trials([planned.record()])
        self._take_in([planned])
        self._intervene(
            Intervention(trial_id=trial_id, kind=DecisionKind.ADD, message=request.signature, numbers=numbers)
        )
        values = ", ".join(f"{name} {value}" for name, value in checked.parameters.items())
        text = f"trial {trial_id} trains {planned.spec.num_steps} steps{start} with {values}"
        return Answer(text=text, trial_id=trial_id)

    def is_done(self, request: TrialRequest) -> bool:
        """Return whether the record says that a request was carried out."""
        # the signature says who asked and when: the same wish may come a second time, and is then another one
        kind = _DECISION_OF[request.kind]
        return any(
            decision.rule == USER and (decision.kind, decision.message) == (kind, request.signature)
            for decision in self._study.decisions
        )


def _not_kept(trial_id: int) -> Problem:
    return Problem(
        where="--warm-start",
        found=f"trial {trial_id}, which lost and whose best checkpoint was not kept",
        allowed="a trial whose best checkpoint is kept",
        hint=f"Let it go on with `cohort trials RUN_DIR resume {trial_id}`, leave out --warm-start, or set a larger "
        "save_total_limit.",
    )
