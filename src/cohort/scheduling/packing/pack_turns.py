"""A plan of packs while it runs: which pack has its turn on which executor, and who goes where now.

A pack's trials enter together and the next pack of the same executor begins when all of them have ended. Trials that
end early, fail or are stopped leave their pack; one that the plan does not know makes a new plan necessary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cohort.scheduling.admission import Admission, Request
from cohort.scheduling.packing.balancing import balance_jobs
from cohort.scheduling.packing.records import PackingProblem, PackJob, jobs_in_order

__all__ = ["PackTurns", "planned_again"]

# changes that are looked at when a pack ends: some ten milliseconds
MOST_BALANCING = 2000


class PackTurns:
    """Follows the jobs of one plan; a job's GPU is its executor."""

    def __init__(self, jobs: Sequence[PackJob], *, num_ranks: int) -> None:
        self._known = frozenset(trial_id for job in jobs for trial_id in job.trial_ids)
        self._running: list[PackJob | None] = [None] * num_ranks
        self._later: list[list[PackJob]] = []
        self.replace_later(jobs)

    @property
    def running(self) -> tuple[PackJob | None, ...]:
        """The pack that each executor has begun; None where it has ended, and the next one has not begun."""
        return tuple(self._running)

    @property
    def later(self) -> tuple[PackJob, ...]:
        """Packs that have not begun."""
        return tuple(job for jobs in self._later for job in jobs)

    def knows(self, trial_ids: Collection[int]) -> bool:
        return self._known >= set(trial_ids)

    def replace_later(self, jobs: Sequence[PackJob]) -> None:
        """Put these in the place of the packs that have not begun."""
        self._later = [[] for _ in self._running]
        for job in sorted(jobs, key=lambda job: job.start_seconds):
            self._later[job.gpu_ids[0]].append(job)

    def take_ended(self, unfinished: Collection[int]) -> tuple[PackJob, ...]:
        """Take off and return the packs whose trials have all ended."""
        left, ended = set(unfinished), []
        for rank, job in enumerate(self._running):
            if job is not None and not left & set(job.trial_ids):
                self._running[rank] = None
                ended.append(job)
        return tuple(ended)

    def begin_next(self, unfinished: Collection[int]) -> tuple[PackJob, ...]:
        """Begin the next pack of each executor that has none, and return those that began."""
        left, began = set(unfinished), []
        for rank, later in enumerate(self._later):
            while self._running[rank] is None and later:
                job = later.pop(0)
                if left & set(job.trial_ids):
                    self._running[rank] = job
                    began.append(job)
        return tuple(began)

    def admission(self, unfinished: Sequence[Request], resident: Sequence[Request]) -> Admission:
        """Return what to change so that each executor has the pack that it has begun, and nothing else.

        Args:
            unfinished: Trials that may be resident, residents among them.
            resident: With the executor that each is on.
        """
        places = {
            trial_id: rank for rank, job in enumerate(self._running) if job is not None for trial_id in job.trial_ids
        }
        settled = {request.trial_id for request in resident if places.get(request.trial_id) == request.rank}
        admitted = [
            request.trial_id
            for request in sorted(unfinished, key=lambda request: (-request.batch_size, request.trial_id))
            if request.trial_id in places and request.trial_id not in settled
        ]
        return Admission(
            # one that is elsewhere leaves first and comes back: two executors may have to exchange trials
            evicted=tuple(request.trial_id for request in resident if request.trial_id not in settled),
            admitted=tuple(admitted),
            ranks={trial_id: places[trial_id] for trial_id in admitted},
        )


def planned_again(
    jobs: Sequence[PackJob], problem: PackingProblem, *, free_from: Sequence[float]
) -> tuple[PackJob, ...]:
    """Return packs that have not begun, placed anew for when their executors will be free in fact; deterministic.

    The packs as they were placed, and the longest first wherever there is room soonest, are evened out trial by trial;
    what ends first is returned.

    Args:
        problem: Has the trials of ``jobs``.
        free_from: When each executor becomes free, in seconds.
    """
    if not jobs:
        return ()
    by_id = {trial.trial_id: trial for trial in problem.trials}
    packs = [
        ([by_id[trial_id] for trial_id in job.trial_ids], job.gpu_ids)
        for job in sorted(jobs, key=lambda job: (job.start_seconds, job.gpu_ids))
    ]
    timed = [(members, gpus, problem.seconds(members, num_gpus=len(gpus))) for members, gpus in packs]
    longest_first = sorted(timed, key=lambda entry: (-len(entry[1]), -entry[2], entry[0][0].trial_id))
    placements = (
        jobs_in_order(timed, num_gpus=problem.num_gpus, free_from=free_from),
        jobs_in_order(
            ((members, len(gpus), seconds) for members, gpus, seconds in longest_first),
            num_gpus=problem.num_gpus,
            free_from=free_from,
        ),
    )
    found = [
        balance_jobs(placed, problem, most_evaluations=MOST_BALANCING, free_from=free_from) for placed in placements
    ]
    return min(found, key=lambda placed: max(job.end_seconds for job in placed))
