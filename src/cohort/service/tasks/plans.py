"""Plans a task of a client before it is submitted: its rows are fetched and checked, then a process plans it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cohort.service.access.refusals import ServiceError
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.preparation import Content, JobRefusedError, client_words, prepare_job
from cohort.service.jobs.row_checks import CheckLimits
from cohort.store.records import Job

__all__ = ["plan_task"]


def plan_task(job: Job, *, base: BaseForJobs, content: Content, limits: CheckLimits, folder: Path) -> dict[str, Any]:
    """Return what a task would take; its files are named by their ids.

    Args:
        job: The task as a job that was not submitted.
        folder: Where its rows lie meanwhile.

    Raises:
        ServiceError: its rows or values are wrong, or planning takes more than ``limits``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="plan-", dir=folder) as name:
        own = JobFolder(Path(name), job.id)
        try:
            prepare_job(job, own, base=base, content=content, limits=limits)
        except JobRefusedError as error:
            raise ServiceError(str(error), param=error.param, code=error.code) from None
        order = {"task": own.task, "cpu_seconds": limits.seconds}
        try:
            found = subprocess.run(
                [sys.executable, "-m", "cohort.service.tasks.plan_program"],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                timeout=2 * limits.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found = None
        if found is None or found.returncode:
            text = "The task cannot be planned within the server's limits; plan a part of its rows."
            raise ServiceError(text, code="plan_too_large")
        answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
        if "error" in answer:
            raise ServiceError(client_words(answer["error"], job=job, folder=own, base=base), code="invalid_task")
        words = partial(client_words, job=job, folder=own, base=base)
        plan: dict[str, Any] = _in_words(answer["plan"], words)
        return plan


def _in_words(value: Any, words: Callable[[str], str]) -> Any:
    """Return a value of JSON with each of its texts, keys included, in other words."""
    if isinstance(value, str):
        return words(value)
    if isinstance(value, list):
        return [_in_words(each, words) for each in value]
    if isinstance(value, dict):
        return {words(key): _in_words(each, words) for key, each in value.items()}
    return value
