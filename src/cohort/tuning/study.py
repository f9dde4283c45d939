"""The study: the single owner of every trial's status, from its first event to the task's result.

Events of trials go in, decisions come out; the engine carries them out. A study is a pure function of its candidates,
its settings and the events in their order. Rules that look at one trial, and the barriers, decide alike for every
order that respects each trial's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.tuning.asked_rule import verdicts_of
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import COMPLETED, FAILED, Decision, DecisionKind, Reason, require_same
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict
from cohort.tuning.early_exit.separation import Standing
from cohort.tuning.early_exit.settings import EarlyExitSettings, build_rules
from cohort.tuning.interventions import BY_USER, FROM_TRIAL, KEPT_BY_USER, USER, Intervention
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.study_trial import BestCheckpoint, StudyError, StudyTrial
from cohort.tuning.trajectory import Trajectory
from cohort.tuning.trial_status import TrialStatus

__all__ = ["Study"]


class Study:
    """The status of each trial, early-exit rules and the best checkpoint of one task.

    Args:
        candidates: All trials, in the order in which waiting ones should begin.
        settings: Early exit.
        metric: What the result is chosen by. Trials are compared by it where evaluations say what each row has in it,
            else by the validation loss, which rules that look at one trial alone always read.
        losses_compare: Losses of all trials have one form and scale.
        are_rewards: Losses are rewards of the trials' own answers, with the other sign.

    Raises:
        StudyError: two candidates have the same id.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        settings: EarlyExitSettings,
        *,
        metric: ObjectiveMetric = LOSS,
        losses_compare: bool = True,
        are_rewards: bool = False,
    ) -> None:
        self._settings, self._losses_compare = settings, losses_compare
        self._has_rows: bool | None = None
        self._metric = metric
        self._rules: tuple[Rule, ...] = build_rules(settings, are_rewards=are_rewards)
        self._trials: dict[int, StudyTrial] = {}
        self._decisions: list[Decision] = []
        self.add(candidates)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Add trials, also while others run (freed slots filled by new proposals of a sampler)."""
        for candidate in candidates:
            if candidate.trial_id in self._trials:
                raise StudyError(f"trial {candidate.trial_id} is already in the study; give each candidate its own id")
            trajectory = Trajectory(ema_weight=self._settings.common.ema_weight)
            self._trials[candidate.trial_id] = StudyTrial(candidate=candidate, trajectory=trajectory)
            for rule in self._rules:
                rule.add(candidate)

    @property
    def trial_ids(self) -> tuple[int, ...]:
        return tuple(self._trials)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions)

    @property
    def metric(self) -> ObjectiveMetric:
        return self._metric

    def candidate(self, trial_id: int) -> Candidate:
        return self._trial(trial_id).candidate

    def status(self, trial_id: int) -> TrialStatus:
        return self._trial(trial_id).status

    def awaits_verdict(self, trial_id: int) -> bool:
        """Return whether the trial is parked until a rule has judged it."""
        return self._trial(trial_id).awaits_verdict

    def reason(self, trial_id: int) -> Reason | None:
        """Return why a trial ended; None while it has not."""
        return self._trial(trial_id).reason

    def trajectory(self, trial_id: int) -> Trajectory:
        """Return a trial's curves, to be read only."""
        return self._trial(trial_id).trajectory

    def best_of(self, trial_id: int) -> BestCheckpoint | None:
        """Return a trial's best evaluation by the objective metric; None before the first that measured it."""
        return self._trial(trial_id).best

    def runnable(self) -> tuple[int, ...]:
        """Return the trials that may be resident: running, then waiting, then kept ones."""
        # Waiting before parked: a selection opens only when every trial has warmed up.
        order = (TrialStatus.RUNNING, TrialStatus.WAITING, TrialStatus.PARKED)
        return tuple(
            trial_id
            for status in order
            for trial_id, trial in self._trials.items()
            if trial.status is status and not trial.awaits_verdict
        )

    def start(self, trial_id: int) -> None:
        self._trial(trial_id).move(TrialStatus.RUNNING)

    def pause(self, trial_id: int) -> None:
        """Record that a running trial was taken out of its slot for the sake of others; it stays runnable."""
        self._trial(trial_id).move(TrialStatus.PARKED)

    def certain_to_stop(self) -> frozenset[int]:
        """Return parked trials that will be stopped whatever the others do, as long as no trial is added."""
        # Rules know nothing of pauses and failures; only a parked trial's state can be given up.
        found = (trial_id for rule in self._rules for trial_id in rule.certain_to_stop())
        return frozenset(
            trial_id
            for trial_id in found
            if self._trials[trial_id].awaits_verdict and not self._trials[trial_id].is_protected
        )

    def next_evaluation(self, trial_id: int) -> int | None:
        """Return the step after which a trial is evaluated next (now, if it has done them); None after the last."""
        return self._trial(trial_id).next_evaluation

    @property
    def compares_again(self) -> bool:
        """Whether what becomes of a trial may still depend on others, as long as no trial is added."""
        return any(rule.compares_again() for rule in self._rules)

    @property
    def is_finished(self) -> bool:
        return all(trial.status.is_final for trial in self._trials.values())

    def result(self) -> BestCheckpoint | None:
        """Return the best checkpoint so far over all trials, however they ended; the metric settles ties.

        None when nothing finite was measured.
        """
        return next(iter(self.leaders()), None)

    def leaders(self) -> list[BestCheckpoint]:
        """Return the best checkpoint of every trial that has one, the best of all first."""
        # Stopped and failed trials compete as well: their best checkpoint is as good as any (ALTO 5).
        bests = (trial.best for trial in self._trials.values())
        return sorted((best for best in bests if best is not None), key=lambda best: best.order(self._metric))

    def observe(self, event: TrialEvent) -> tuple[Decision, ...]:
        """Take in one event and return what follows from it, in the order in which it is to be carried out.

        An event that was seen before and any event of a trial that has ended change nothing.

        Raises:
            StudyError: the trial is unknown or not running, a step was skipped, or an evaluation came at a step that
                was not done or not planned.
        """
        trial = self._trial(event.trial_id)
        # An executor may be some steps ahead of a decision.
        if trial.status.is_final:
            return ()
        if isinstance(event, TrialFailed):
            decisions = self._end(
                trial,
                status=TrialStatus.FAILED,
                decision=trial.decided(DecisionKind.STOP, FAILED, numbers={}, message=event.message),
            )
        elif not trial.take_in(event):
            return ()
        else:
            decisions = self._decide(trial, event)
        self._decisions.extend(decisions)
        return tuple(decisions)

    def intervene(self, intervention: Intervention) -> tuple[Decision, ...]:
        """Do what a person asks of a trial; return the decision and what follows from it for others.

        A trial that is stopped leaves all comparisons: the rules treat it as one that failed, and its best checkpoint
        still competes for the result. One that is resumed trains on outside of the comparisons, so that no rule stops
        it. A protected one is compared with the others until a rule would stop it, and then goes on outside.

        Raises:
            StudyError: the trial is unknown, or cannot become what is asked.
        """
        trial, kind = self._trial(intervention.trial_id), intervention.kind
        number = 1 + sum(decision.rule == USER for decision in self._decisions)
        decision = Decision(
            trial_id=intervention.trial_id,
            step=trial.trajectory.num_steps,
            kind=kind,
            reason=BY_USER[kind],
            rule=USER,
            # the number tells a second stop after the same step from the first
            numbers={"number": number, **intervention.numbers},
            message=intervention.message,
        )
        decisions = [decision]
        if kind is DecisionKind.STOP:
            decisions = self._end(trial, status=TrialStatus.STOPPED, decision=decision)
        elif kind is DecisionKind.RESUME:
            trial.move(TrialStatus.PARKED)
            trial.reason, trial.is_protected = None, True
        elif kind is DecisionKind.PROTECT:
            trial.is_protected = True
        self._decisions.extend(decisions)
        return tuple(decisions)

    def has_foreign_start(self, trial_id: int) -> bool:
        """Return whether the trial begins with weights of another one."""
        return any(
            FROM_TRIAL in decision.numbers
            for decision in self._decisions
            if decision.kind is DecisionKind.ADD and decision.trial_id == trial_id
        )

    def is_protected(self, trial_id: int) -> bool:
        """Return whether a person decided that no exit rule may stop the trial."""
        return self._trial(trial_id).is_protected

    def replay(
        self, log: Iterable[TrialEvent | Candidate | Intervention], *, recorded: Sequence[Decision] | None = None
    ) -> None:
        """Rebuild the state after a log: observe its events, starting trials as their events need it.

        Args:
            log: Events and interventions in their recorded order; a candidate among them is one that was added there.
            recorded: Decisions that were carried out then. They are authoritative.

        Raises:
            RunStateError: the log does not lead to the recorded decisions (it is incomplete, or settings changed).
            StudyError: the log contradicts itself.
        """
        num_before = len(self._decisions)
        for entry in log:
            if isinstance(entry, Candidate):
                self.add([entry])
                continue
            if isinstance(entry, Intervention):
                self.intervene(entry)
                continue
            # The log has no starts: a trial that sent an event was resident.
            if self._trial(entry.trial_id).may_start:
                self.start(entry.trial_id)
            self.observe(entry)
        if recorded is None:
            return
        require_same(self._decisions[num_before:], recorded)

    def _trial(self, trial_id: int) -> StudyTrial:
        try:
            return self._trials[trial_id]
        except KeyError:
            raise StudyError(f"trial {trial_id} is not in the study, which has {sorted(self._trials)}") from None

    def _decide(self, trial: StudyTrial, event: StepDone | Evaluated) -> list[Decision]:
        decisions: list[Decision] = []
        if isinstance(event, Evaluated) and (improved := trial.update_best(event, metric=self._metric)) is not None:
            decisions.append(improved)
        standing = self._standing(event) if isinstance(event, Evaluated) else None
        observation = Observation(
            candidate=trial.candidate, event=event, trajectory=trial.trajectory, compared_by=standing
        )
        is_end = isinstance(event, Evaluated) and observation.is_last_step
        for rule in self._rules:
            # Nothing is left to save after the last step, and a finished trial must not be called underperforming.
            if (is_end and rule.compares_trials) or not (trial.is_ranked or rule.is_final):
                continue
            decisions.extend(self._carry_out(rule, verdicts_of(rule, rule.observe, observation, trial=trial)))
            # The first rule that ends a trial gives the reason; the order is that of build_rules.
            if trial.status.is_final:
                return decisions
        if is_end:
            numbers = {"validation_loss": trial.trajectory.validation[-1].value, "planned_steps": event.step}
            done = trial.decided(DecisionKind.FINISH, COMPLETED, numbers=numbers)
            decisions.extend(self._end(trial, status=TrialStatus.COMPLETED, decision=done))
        return decisions

    def _standing(self, event: Evaluated) -> Standing:
        # The first one settles it: accuracies after a resume must not be ranked with losses from before it, which are
        # what a run that began without rows is compared by.
        if self._has_rows is None:
            self._has_rows = bool(event.row_values)
        metric = self._metric if self._has_rows else LOSS
        return Standing.of(event, metric=metric, losses_compare=self._losses_compare)

    def _carry_out(self, rule: Rule, verdicts: Iterable[Verdict]) -> list[Decision]:
        """Turn a rule's verdicts into decisions, and what their endings lead to in turn."""
        decisions = []
        for verdict in verdicts:
            trial = self._trial(verdict.trial_id)
            decision = Decision(
                trial_id=verdict.trial_id,
                step=trial.trajectory.num_steps,
                kind=verdict.kind,
                reason=verdict.reason,
                rule=rule.name,
                numbers=verdict.numbers,
            )
            if verdict.kind is DecisionKind.STOP and trial.is_protected and not rule.is_final:
                decisions.extend(self._overrule(trial, decision))
                continue
            if verdict.kind is DecisionKind.STOP:
                decisions.extend(self._end(trial, status=TrialStatus.STOPPED, decision=decision))
                continue
            if verdict.kind is DecisionKind.PARK:
                trial.move(TrialStatus.PARKED, awaits_verdict=True)
            # A KEEP on arrival finds the trial still running, and it stays so.
            else:
                trial.awaits_verdict = False
            decisions.append(decision)
        return decisions

    def _end(self, trial: StudyTrial, *, status: TrialStatus, decision: Decision) -> list[Decision]:
        """End a trial and inform the rules, which may have waited for it."""
        # First the status, then the rules: an ending may open a barrier, whose verdicts end further trials in turn.
        trial.move(status)
        trial.reason = decision.reason
        return [decision, *self._leave(trial)]

    def _overrule(self, trial: StudyTrial, decision: Decision) -> list[Decision]:
        """Let a protected trial go on that a rule would stop; for all others it is as if it had been stopped."""
        trial.awaits_verdict = False
        return [replace(decision, kind=DecisionKind.KEEP, reason=KEPT_BY_USER), *self._leave(trial)]

    def _leave(self, trial: StudyTrial) -> list[Decision]:
        """Take a trial out of the comparisons for good; return what that settles for others."""
        if not trial.is_ranked:
            return []
        trial.is_ranked = False
        decisions: list[Decision] = []
        for rule in self._rules:
            decisions.extend(
                self._carry_out(rule, verdicts_of(rule, rule.leave, trial.candidate.trial_id, trial=trial))
            )
        return decisions
