"""Has the trials of one task follow a plan of packs, once nothing that happens to a trial depends on the others.

Until the last comparison of trials it is open which of them go on, so slots are refilled. From then on each trial
trains to its end unless it diverges, and the packing planner says which train together, where and when. It is asked
once for each process, when no comparison lies ahead; packs that have not begun are placed again whenever one ends, and
all trials are planned anew when there is one that the plan does not know, or when a resumed run has other executors.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cohort.core.errors import InputError, Problem
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.prepare.preparation import Preparation
from cohort.prepare.step_cost import expected_step_cost, work_with_evaluations
from cohort.runs.packing_records import PackingRecord, PackRecord
from cohort.scheduling.admission import Admission, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.packing.left_trials import left_trials, left_work
from cohort.scheduling.packing.pack_turns import PackTurns, planned_again
from cohort.scheduling.packing.records import PackingProblem, PackJob
from cohort.scheduling.packing.windows import window_quotas
from cohort.scheduling.solver import has_solver
from cohort.training.trial import TrialSpec
from cohort.tuning.study import Study

__all__ = ["PlannedCourse"]


class PlannedCourse:
    """The plan of one task's packs, from the moment on at which there is one."""

    def __init__(
        self,
        preparation: Preparation,
        run: OpenRun,
        *,
        study: Study,
        share: ExecutorShare,
        specs: Mapping[int, TrialSpec],
    ) -> None:
        """Wait until a plan can be made; ``specs`` may grow.

        Raises:
            InputError: the task asks for plans, and what makes them is not installed.
        """
        self._preparation, self._run, self._study, self._share, self._specs = preparation, run, study, share, specs
        self._capacity, self._wanted = preparation.sizes.capacity, preparation.task.packing
        self._turns: PackTurns | None = None
        # trials for which slots are refilled, since that was chosen
        self._refilled: frozenset[int] = frozenset()
        self._expected: StepCost | None = None
        if self._wanted == "planned" and not has_solver():
            raise InputError(
                Problem(
                    where=preparation.task.where("packing"),
                    found="planned, but ortools, which solves the planner's integer programs, is not installed",
                    allowed="auto | refill",
                    hint="Run pip install ortools, or remove the key.",
                )
            )

    def admission(self, unfinished: Sequence[Request], resident: Sequence[Request]) -> Admission | None:
        """Return what the plan changes at this step boundary; None where slots are refilled.

        Args:
            unfinished: The task's trials that may be resident, by their numbers in the executor.
            resident: Those that are, with their ranks.
        """
        own = [self._own(request) for request in unfinished]
        if not own or not self._may_plan():
            self._turns = None
            return None
        ids = [request.trial_id for request in own]
        if self._turns is None or not self._turns.knows(ids):
            if self._refilled >= set(ids):
                return None
            self._plan(own)
        turns = self._turns
        if turns is None:
            return None
        if turns.take_ended(ids) and turns.later:
            self._place_again(turns, own)
        turns.begin_next(ids)
        return self._by_key(turns.admission(own, [self._own(request) for request in resident]))

    def quotas(self, steps_left: Mapping[int, int], *, ranks: Mapping[int, int], most_steps: int) -> dict[int, int]:
        """Return the steps of each resident in the next window, by its number in the executor.

        Args:
            steps_left: Of each up to its next evaluation.
            ranks: Where each is.
            most_steps: Most steps of the slowest executor.
        """
        if self._turns is None or len(set(ranks.values())) < 2:
            return {key: min(steps, most_steps) for key, steps in steps_left.items()}
        packs: dict[int, list[AdapterWork]] = {}
        for key, rank in ranks.items():
            trial_id = self._share.trial_of(key)
            assert trial_id is not None, "a plan is followed by the trials of one task alone"
            packs.setdefault(rank, []).append(self._work(trial_id))
        seconds = {rank: self._cost.step_seconds(pack) for rank, pack in packs.items()}
        return window_quotas(steps_left, ranks=ranks, step_seconds=seconds, most_steps=most_steps)

    def _may_plan(self) -> bool:
        """Return whether each trial that is left trains to its end, and several executors divide them.

        A task that asks for a plan gets one on a single executor as well.
        """
        has_several = self._capacity.num_ranks > 1 or self._wanted == "planned"
        return (
            has_several
            and self._wanted != "refill"
            and self._preparation.proposals.is_complete
            and not self._study.compares_again
        )

    def _plan(self, requests: Sequence[Request]) -> None:
        """Choose between a plan of all trials that are left and slots that refill, and record it."""
        self._turns, self._refilled = None, frozenset(request.trial_id for request in requests)
        if not has_solver():
            self._record(PackingRecord(at_seconds=self._now, choice="refill", reason="ortools is not installed"))
            return
        # imported where a plan is wanted: with the solver it takes half a second
        packing = importlib.import_module("cohort.scheduling.packing.choice")
        chosen = packing.choose_packing(
            requests,
            works=self._left(requests),
            capacity=self._capacity,
            cost=self._cost,
            wanted=packing.Packing(self._wanted),
        )
        jobs: tuple[PackJob, ...] = () if chosen.plan is None else chosen.plan.jobs
        record = PackingRecord(
            at_seconds=self._now,
            choice="refill" if chosen.plan is None else "planned",
            reason=chosen.reason,
            planned_seconds=chosen.planned_seconds,
            refill_seconds=chosen.refill_seconds,
            packs=tuple(
                PackRecord(
                    trial_ids=job.trial_ids,
                    rank=job.gpu_ids[0],
                    start_seconds=self._now + job.start_seconds,
                    end_seconds=self._now + job.end_seconds,
                )
                for job in jobs
            ),
        )
        self._record(record)
        if chosen.plan is not None:
            self._turns = PackTurns(jobs, num_ranks=self._capacity.num_ranks)

    def _place_again(self, turns: PackTurns, requests: Sequence[Request]) -> None:
        """Place the packs that have not begun by when the executors will be free in fact."""
        problem = self._problem(requests)
        by_id = {item.trial_id: item for item in problem.trials}
        # in predicted seconds: where all packs take longer than predicted, none has to move
        free_from = []
        for job in turns.running:
            rest = [by_id[trial_id] for trial_id in (job.trial_ids if job else ()) if trial_id in by_id]
            free_from.append(problem.seconds(rest, num_gpus=1) if rest else 0.0)
        later = [
            replace(job, trial_ids=left)
            for job in turns.later
            if (left := tuple(trial_id for trial_id in job.trial_ids if trial_id in by_id))
        ]
        placed = planned_again(later, problem, free_from=free_from)
        if {(job.trial_ids, job.gpu_ids) for job in placed} != {(job.trial_ids, job.gpu_ids) for job in later}:
            *before, last = self._run.store.reader.facts().packing_chosen or ()
            changed = replace(last, num_changes=last.num_changes + 1)
            self._run.store.set_facts(packing_chosen=(*before, changed))
        turns.replace_later(placed)

    def _record(self, record: PackingRecord) -> None:
        known = self._run.store.reader.facts().packing_chosen or ()
        self._run.store.set_facts(packing_chosen=(*known, record))
        self._run.watcher.note(f"packing: {self._wanted} is {record.choice}; {record.reason}")

    @property
    def _now(self) -> float:
        return self._run.store.seconds

    @property
    def _cost(self) -> StepCost:
        if self._expected is None:
            preparation, works = self._preparation, tuple(self._work(trial_id) for trial_id in self._specs)
            self._expected = expected_step_cost(preparation.inputs, preparation.machine, works=works)
        return self._expected

    def _work(self, trial_id: int) -> AdapterWork:
        preparation = self._preparation
        return work_with_evaluations(
            self._specs[trial_id],
            task=preparation.task,
            inputs=preparation.inputs,
            num_evaluations=len(self._study.candidate(trial_id).evaluation_steps),
            num_rows=len(preparation.evaluation_rows),
        )

    def _left(self, requests: Sequence[Request]) -> dict[int, AdapterWork]:
        ids = [request.trial_id for request in requests]
        return {
            trial_id: left_work(self._work(trial_id), num_done=self._study.trajectory(trial_id).num_steps)
            for trial_id in ids
        }

    def _problem(self, requests: Sequence[Request]) -> PackingProblem:
        return left_trials(requests, works=self._left(requests), capacity=self._capacity, cost=self._cost)

    def _own(self, request: Request) -> Request:
        trial_id = self._share.trial_of(request.trial_id)
        assert trial_id is not None, "a plan is followed by the trials of one task alone"
        return replace(request, trial_id=trial_id)

    def _by_key(self, admission: Admission) -> Admission:
        key = self._share.key
        return Admission(
            evicted=tuple(map(key, admission.evicted)),
            admitted=tuple(map(key, admission.admitted)),
            ranks={key(trial_id): rank for trial_id, rank in admission.ranks.items()},
        )
