"""What can go wrong with a store, as types: what answers over HTTP chooses the status by the class."""

from __future__ import annotations

from cohort.core.errors import CohortError
from cohort.core.units import format_bytes

__all__ = [
    "IllegalTransitionError",
    "LeaseLostError",
    "NameTakenError",
    "NewerDatabaseError",
    "QuotaExceededError",
    "StorageFull",
    "StoreError",
    "StoreUnavailable",
    "TooLargeError",
    "UnknownIdError",
]


class StoreError(CohortError):
    """Base of all errors of a store."""


class UnknownIdError(StoreError):
    """There is no such thing in this project; the same words for a thing of another project.

    Attributes:
        kind: What was asked for, such as ``job``.
        id: The id that was given.
    """

    def __init__(self, kind: str, id: str) -> None:  # noqa: A002 - the word of the APIs
        super().__init__(f"no {kind} with id {id!r}; list those that are there and choose one of them")
        self.kind = kind
        self.id = id


class NameTakenError(StoreError):
    """Another organisation or project has this name."""


class IllegalTransitionError(StoreError):
    """A job cannot go from its status to the one that was asked for.

    Attributes:
        status: What the job is.
        wanted: What it was to become.
    """

    def __init__(self, job_id: str, *, status: str, wanted: str, allowed: str) -> None:
        super().__init__(
            f"job {job_id} is {status} and cannot become {wanted}; from {status} it can become {allowed or 'nothing'}"
        )
        self.status = status
        self.wanted = wanted


_FIXES = {
    "max_tokens_per_day": "wait until the next day begins (0:00 UTC)",
    "max_stored_bytes": "delete files or models",
    "max_open_jobs": "wait until a job has ended, or cancel one",
}


class QuotaExceededError(StoreError):
    """A project has no more of something.

    Attributes:
        quota: The quota's name, such as ``max_open_jobs``.
        limit: How much the project may have.
        used: How much it has.
        wanted: How much more was asked for.
    """

    def __init__(self, quota: str, *, limit: int, used: int, wanted: int) -> None:
        super().__init__(
            f"{quota} of this project is {limit}, {used} of it are used, and {wanted} more were asked for; "
            f"{_FIXES.get(quota, 'remove or finish something')}, or ask the administrator for more"
        )
        self.quota = quota
        self.limit = limit
        self.used = used
        self.wanted = wanted


class TooLargeError(StoreError):
    """A stream of bytes was longer than it may be. Nothing of it was kept.

    Attributes:
        limit: Most bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than the {format_bytes(limit)} that one file may have; split it or shorten it")
        self.limit = limit


class LeaseLostError(StoreError):
    """Another runner has the job now, or it has ended: what this runner was about to write is not written."""


class NewerDatabaseError(StoreError):
    """A later version of Cohort has changed the database's tables. Nothing was read or written."""


class StorageFull(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """A disk or a database has no room. What was acknowledged before is safe.

    Attributes:
        retry_after_seconds: When it makes sense to ask again.
    """

    retry_after_seconds = 60.0


class StoreUnavailable(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """The database or the blobs cannot be reached now. Asking again later is right.

    Attributes:
        retry_after_seconds: When it makes sense to ask again.
        may_be_done: The connection was lost while the change was being committed: it may be there or not.
    """

    retry_after_seconds = 5.0

    def __init__(self, message: str, *, may_be_done: bool = False) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done
