"""Shorten a finished pack plan by moving trials away from the GPUs that end last.

One trial at a time goes from a pack on the latest GPUs to another pack, to a pack of its own, or changes places with a
smaller one, as long as the sorted ends of the GPUs shrink. Jobs keep their GPUs and their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cohort.scheduling.packing.records import ItemType, PackingProblem, PackItem, PackJob, jobs_in_order

__all__ = ["balance_jobs"]

# a gain below this share is rounding
LEAST_GAIN = 1e-6


@dataclass(kw_only=True)
class _Job:
    """One job while it is changed; its place in the list is its turn on its GPUs."""

    trials: list[PackItem]
    gpu_ids: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Two jobs' new members; ``target`` is the number of jobs when the second is a new one on ``gpu_ids``."""

    source: int
    target: int
    gpu_ids: tuple[int, ...]
    left: tuple[PackItem, ...]
    joined: tuple[PackItem, ...]


def balance_jobs(
    jobs: Sequence[PackJob],
    problem: PackingProblem,
    *,
    most_evaluations: int = 20_000,
    free_from: Sequence[float] | None = None,
) -> tuple[PackJob, ...]:
    """Return jobs that end no later; deterministic.

    Args:
        free_from: When each GPU becomes free, in seconds; None: all are free at 0.
    """
    return _Balancing(jobs, problem, most_evaluations=most_evaluations, free_from=free_from).run()


class _Balancing:
    def __init__(
        self,
        jobs: Sequence[PackJob],
        problem: PackingProblem,
        *,
        most_evaluations: int,
        free_from: Sequence[float] | None,
    ) -> None:
        self.problem = problem
        self.free_from = [0.0] * problem.num_gpus if free_from is None else list(free_from)
        self.evaluations_left = most_evaluations
        by_id = {trial.trial_id: trial for trial in problem.trials}
        self.types = {trial.trial_id: ItemType.of(trial) for trial in problem.trials}
        self.jobs = [
            _Job(
                trials=[by_id[trial_id] for trial_id in job.trial_ids],
                gpu_ids=job.gpu_ids,
                seconds=job.end_seconds - job.start_seconds,
            )
            for job in sorted(jobs, key=lambda job: (job.start_seconds, job.gpu_ids))
        ]

    def run(self) -> tuple[PackJob, ...]:
        ends = self._ends(self.jobs)
        while (change := self._find(ends)) is not None:
            self.jobs = self._changed(change)
            ends = self._ends(self.jobs)
        packs = ((job.trials, job.gpu_ids, job.seconds) for job in self.jobs)
        return jobs_in_order(packs, num_gpus=self.problem.num_gpus, free_from=self.free_from)

    def _ends(self, jobs: Sequence[_Job]) -> list[float]:
        """Return when each GPU is free for good."""
        free = list(self.free_from)
        for job in jobs:
            end = max(free[gpu] for gpu in job.gpu_ids) + job.seconds
            for gpu in job.gpu_ids:
                free[gpu] = end
        return free

    def _find(self, ends: Sequence[float]) -> _Change | None:
        """Return the first change that shortens the sorted ends."""
        makespan = max(ends)
        before = sorted(ends, reverse=True)
        # Only moves away from the GPUs that end last can shorten the plan.
        latest = {gpu for gpu, end in enumerate(ends) if end >= makespan * (1 - 1e-12)}
        for change in self._changes(ends, latest):
            if self.evaluations_left <= 0:
                return None
            self.evaluations_left -= 1
            degree = len(change.gpu_ids)
            if not self.problem.fits(change.joined, num_gpus=degree):
                continue
            # most changes fail here: what joins makes its GPUs end too late
            grown = self.problem.seconds(change.joined, num_gpus=degree)
            grown -= self.jobs[change.target].seconds if change.target < len(self.jobs) else 0.0
            if max(ends[gpu] for gpu in change.gpu_ids) + grown >= makespan * (1 - LEAST_GAIN):
                continue
            # All sorted ends, not the makespan alone: several GPUs may end last, and one move helps one of them.
            after = sorted(self._ends(self._changed(change)), reverse=True)
            if _is_shorter(after, before):
                return change
        return None

    def _changes(self, ends: Sequence[float], latest: set[int]) -> Iterator[_Change]:
        sources = [place for place, job in enumerate(self.jobs) if latest & set(job.gpu_ids)]
        targets = [place for place, job in enumerate(self.jobs) if not latest & set(job.gpu_ids)]
        # Where there is most room first, so that the first improvement found is likely a large one.
        targets.sort(key=lambda place: (max(ends[gpu] for gpu in self.jobs[place].gpu_ids), place))
        for place in reversed(sources):
            source = self.jobs[place]
            for leaving in self._one_of_each(source.trials):
                left = tuple(trial for trial in source.trials if trial is not leaving)
                degree = min(d for d in self.problem.degrees if self.problem.fits([leaving], num_gpus=d))
                first_free = sorted(range(len(ends)), key=lambda gpu: (ends[gpu], gpu))[:degree]
                yield _Change(
                    source=place, target=len(self.jobs), gpu_ids=tuple(sorted(first_free)), left=left, joined=(leaving,)
                )
                for other in targets:
                    target = self.jobs[other]
                    joined = (*target.trials, leaving)
                    yield _Change(source=place, target=other, gpu_ids=target.gpu_ids, left=left, joined=joined)
        for place in reversed(sources):
            source = self.jobs[place]
            for leaving in self._one_of_each(source.trials):
                left = tuple(trial for trial in source.trials if trial is not leaving)
                for other in targets:
                    yield from self._swaps(place, other, leaving, left)

    def _swaps(self, place: int, other: int, leaving: PackItem, left: tuple[PackItem, ...]) -> Iterator[_Change]:
        target = self.jobs[other]
        degree = len(self.jobs[place].gpu_ids)
        for coming in self._one_of_each(target.trials):
            if self.types[coming.trial_id] == self.types[leaving.trial_id]:
                continue
            back = (*left, coming)
            # worth a look only if the latest GPUs gain by it
            if not self.problem.fits(back, num_gpus=degree):
                continue
            if self.problem.seconds(back, num_gpus=degree) >= self.jobs[place].seconds * (1 - LEAST_GAIN):
                continue
            joined = (*(trial for trial in target.trials if trial is not coming), leaving)
            yield _Change(source=place, target=other, gpu_ids=target.gpu_ids, left=back, joined=joined)

    def _one_of_each(self, trials: Sequence[PackItem]) -> list[PackItem]:
        # Trials of equal type are interchangeable: the others would be the same change again.
        return list({self.types[trial.trial_id]: trial for trial in trials}.values())

    def _changed(self, change: _Change) -> list[_Job]:
        jobs = list(self.jobs)
        jobs[change.source] = self._job(change.left, self.jobs[change.source].gpu_ids)
        joined = self._job(change.joined, change.gpu_ids)
        if change.target < len(jobs):
            jobs[change.target] = joined
        else:
            jobs.append(joined)
        return [job for job in jobs if job.trials]

    def _job(self, trials: Sequence[PackItem], gpu_ids: tuple[int, ...]) -> _Job:
        seconds = self.problem.seconds(trials, num_gpus=len(gpu_ids)) if trials else 0.0
        return _Job(trials=list(trials), gpu_ids=gpu_ids, seconds=seconds)


def _is_shorter(after: Sequence[float], before: Sequence[float]) -> bool:
    """Return whether sorted ends are less, by more than rounding, at the first place where they differ."""
    for new, old in zip(after, before, strict=True):
        if new < old * (1 - LEAST_GAIN):
            return True
        if new > old * (1 + LEAST_GAIN):
            return False
    return False
