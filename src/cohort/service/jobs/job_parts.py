"""What all jobs of a node share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.local_queue import LocalQueue
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.store.store import Store

__all__ = ["JobParts"]


@dataclass(frozen=True, kw_only=True)
class JobParts:
    """What all jobs of a node share.

    Attributes:
        base_of: Returns a base model by its name.
        organisation_of: Returns the name of the organisation of a project.
        weight_of: Returns the weight of a project.
        threads: For what takes long: files are read, adapters stored.
    """

    store: Store
    queue: LocalQueue
    folders: Path
    base_of: Callable[[str], BaseForJobs]
    organisation_of: Callable[[str], str]
    weight_of: Callable[[str], float]
    threads: Executor
    settings: RunnerSettings
