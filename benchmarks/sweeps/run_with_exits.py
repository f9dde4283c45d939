"""The loop of a run without its records: a study that decides, an executor that trains, states parked in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cohort.core.events import Evaluated
from cohort.data.tokenised import TokenisedRows
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning import Candidate, Decision, DecisionKind, Study

__all__ = ["run_with_exits"]

Proposals = Callable[[Sequence[int]], Sequence[tuple[TrialSpec, Candidate]]]


def run_with_exits(
    executor: Executor,
    study: Study,
    specs: dict[int, TrialSpec],
    *,
    validation: TokenisedRows,
    propose: Proposals = lambda _: (),
    is_over: Callable[[], bool] = lambda: False,
) -> dict[int, dict[int, float]]:
    """Train until every trial has ended; return the validation losses by trial and step.

    Args:
        executor: As many trials are resident as fit into its bank.
        study: Decides; holds the first trials.
        specs: Of the first trials; proposed ones are added.
        validation: What trials are evaluated on.
        propose: Told which trials have just ended, returns new ones for their slots.
        is_over: Asked before each step whether to stop, with trials still in training.
    """
    parked: dict[int, TrialState] = {}
    losses: dict[int, dict[int, float]] = {trial_id: {} for trial_id in specs}

    def carry_out(decisions: Sequence[Decision]) -> None:
        ended = []
        for decision in decisions:
            if decision.kind is DecisionKind.PARK:
                parked[decision.trial_id] = executor.unload(decision.trial_id)
            elif decision.kind in (DecisionKind.STOP, DecisionKind.FINISH):
                ended.append(decision.trial_id)
                parked.pop(decision.trial_id, None)
                if decision.trial_id in executor.resident:
                    executor.drop(decision.trial_id)
        # a barrier that opened without ending anybody is news as well
        for spec, candidate in propose(ended) if decisions else ():
            specs[spec.trial_id], losses[spec.trial_id] = spec, {}
            study.add([candidate])

    while not study.is_finished and not is_over():
        for trial_id in study.runnable():
            if trial_id not in executor.resident and executor.fits(specs[trial_id]):
                executor.load(specs[trial_id], parked.pop(trial_id, None))
                study.start(trial_id)
        events = sorted(executor.step(), key=lambda event: event.trial_id)
        done = {event.trial_id: event.step for event in events}
        for event in events:
            carry_out(study.observe(event))
        due = {i: done[i] for i in sorted(executor.resident) if study.next_evaluation(i) == done.get(i)}
        if not due:
            continue
        found = executor.evaluate(tuple(due), rows=validation, row_ids=range(len(validation)))
        for trial_id, step in due.items():
            losses[trial_id][step] = found[trial_id].loss
            evaluated = Evaluated(trial_id=trial_id, step=step, validation_loss=found[trial_id].loss, metrics={})
            carry_out(study.observe(evaluated))
    return losses
