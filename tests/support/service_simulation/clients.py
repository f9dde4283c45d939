"""Clients of a simulated service: they submit, pause, resume, cancel and look, and try what is not theirs."""

from __future__ import annotations

from cohort.core.errors import CohortError
from cohort.store.enums import JobKind
from cohort.store.errors import (
    IllegalTransitionError,
    QuotaExceededError,
    StorageFull,
    StoreUnavailable,
    UnknownIdError,
)
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import Store

from .invariants import Invariants
from .world import ProcessDied, World


class Client:
    """One tenant's program, which asks again, with the same key, until it has an answer.

    Attributes:
        accepted: By key, the job that the service said it has accepted.
    """

    def __init__(self, world: World, store: Store, invariants: Invariants, project_id: str, *, num_jobs: int) -> None:
        self._world, self._store, self._invariants = world, store, invariants
        self.project_id, self._left = project_id, num_jobs
        self.accepted: dict[str, str] = {}
        self._unanswered: list[str] = []
        self._is_asking = False
        self.others: list[Client] = []
        world.meanwhile.append(self._request)
        world.after(5.0, self._act)

    @property
    def is_answered(self) -> bool:
        return not self._unanswered and not self._left

    def _act(self) -> None:
        self._request()
        if not (self._world.is_calm and self.is_answered):
            self._world.after(8.0, self._act)

    def _request(self) -> None:
        # it waits for an answer before it asks for anything else
        if self._is_asking:
            return
        self._is_asking = True
        # between a runner's decision to write and its write: what is committed now is not the runner's
        runner, self._invariants.writing = self._invariants.writing, None
        try:
            self._one_request()
        except (StoreUnavailable, StorageFull) as error:
            # what the server answers with 503 or 507
            self._world.say(f"client {self.project_id[-4:]} is told {type(error).__name__}")
        except ProcessDied:
            # its server is killed under the request; the client sees a connection that ends
            self._world.say(f"client {self.project_id[-4:]} loses its server")
        except (QuotaExceededError, IllegalTransitionError) as error:
            self._world.say(f"client {self.project_id[-4:]} is refused: {error}")
        finally:
            self._is_asking, self._invariants.writing = False, runner

    def _one_request(self) -> None:
        chance, jobs = self._world.chance, self._store.project(self.project_id).jobs
        if self._unanswered and (self._world.is_calm or chance.random() < 0.5):
            self._submit(self._unanswered[0])
        elif self._left and chance.random() < 0.6:
            self._left -= 1
            self._unanswered.append(f"{self.project_id}-{self._left}")
            self._submit(self._unanswered[-1])
        elif self.accepted and not self._world.is_calm:
            job_id = chance.choice(sorted(self.accepted.values()))
            change = chance.choice((jobs.pause, jobs.resume, jobs.resume, jobs.cancel, jobs.get, jobs.get))
            self._world.say(f"client {self.project_id[-4:]} asks to {change.__name__} {job_id[-6:]}")
            change(job_id)
            self._look_around()

    def _submit(self, key: str) -> None:
        jobs = self._store.project(self.project_id).jobs
        new = NewJob(kind=JobKind.TASK, base_model="base", request={"key": key}, idempotency_key=key)
        try:
            job = jobs.create(new)
        except QuotaExceededError:
            # an answer, too: it was not accepted
            self._unanswered.remove(key)
            raise
        self._unanswered.remove(key)
        self.accepted[key] = job.id
        self._world.say(f"client {self.project_id[-4:]} has {job.id[-6:]} accepted")

    def _look_around(self) -> None:
        """See all of its own, and nothing of anyone else."""
        jobs = self._store.project(self.project_id).jobs
        listed = {job.id for job in jobs.list(limit=100).items}
        self._invariants.require(listed >= set(self.accepted.values()), "a list leaves out a job that was accepted")
        for other in self.others:
            foreign = set(other.accepted.values())
            self._invariants.require(not listed & foreign, "a list shows jobs of another project")
            for job_id in sorted(foreign)[:1]:
                try:
                    self._world.chance.choice((jobs.get, jobs.cancel, jobs.pause, jobs.events))(job_id)
                except UnknownIdError:
                    continue
                except CohortError:
                    if self._world.is_calm:
                        raise
                    continue
                self._invariants.require(False, f"{job_id} of another project is known")

    def resume_all(self) -> None:
        """Let everything go on that was paused; in a calm world."""
        jobs = self._store.project(self.project_id).jobs
        for job_id in sorted(self.accepted.values()):
            try:
                jobs.resume(job_id)
            except IllegalTransitionError:
                continue
