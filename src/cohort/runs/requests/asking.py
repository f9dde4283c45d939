"""Asks the process that trains a run to do something with its trials, and waits for what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.requests.request_checks import check_request
from cohort.runs.requests.trial_requests import Answer, RequestSpool, TrialRequest, person_here
from cohort.tasks.task_file import TaskFile

__all__ = ["Asked", "ask", "check_all"]

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What became of a request.

    Attributes:
        answer: None while the run has not taken it up.
        is_training: Whether a process trains the run; if none does, a resume takes it up first.
    """

    answer: Answer | None
    is_training: bool


def ask(run_directory: Path, request: TrialRequest, *, wait_seconds: float, clock: Clock | None = None) -> Asked:
    """Check a request, hand it in and wait for the answer; a run that no process trains takes it up when resumed.

    Args:
        wait_seconds: The longest wait; the request stays when it is over.

    Raises:
        InputError: there is no run, it has ended, or what is asked cannot be done; nothing is handed in then. Or the
            run refused it, because a trial had gone on meanwhile.
        StorageFullError: the disk is full; nothing is handed in.
    """
    clock = clock or SystemClock()
    check_all(run_directory, [request])
    directory = RunDirectory.open(run_directory)
    spool, now = RequestSpool(directory.requests), clock.now()
    # to the millisecond: two requests of one person are two decisions
    at = f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} UTC"
    name = spool.post(replace(request, who=request.who or person_here(), at=at), at=now)
    is_training = directory.lock().holder() is not None
    until, answer = clock.monotonic() + wait_seconds, None
    while is_training and answer is None and clock.monotonic() < until:
        clock.sleep(_SECONDS_BETWEEN_LOOKS)
        answer = spool.take_answer(name)
        is_training = directory.lock().holder() is not None
    if answer is None:
        # a run may answer in its last moment, after the look above
        answer = spool.take_answer(name)
    if answer is not None and answer.problems:
        raise InputError(answer.problems)
    return Asked(answer=answer, is_training=is_training)


def check_all(run_directory: Path, requests: Sequence[TrialRequest]) -> None:
    """Check requests against a run as it stands, as the run itself does again when it takes them up.

    Raises:
        InputError: there is no run, it has ended, or one of them cannot be carried out; every reason.
    """
    directory = RunDirectory.open(run_directory)
    if not directory.database.is_file():
        raise InputError(_not_begun(directory))
    with RunReader.open(directory.database) as reader:
        # the record is made before its trials and its task are written to it, and a kill may come between
        if (document := reader.facts().task.document) is None:
            raise InputError(_not_begun(directory))
        task, problems = TaskFile.model_validate(document), list[Problem]()
        for request in requests:
            try:
                check_request(request, reader=reader, task=task)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)


def _not_begun(directory: RunDirectory) -> Problem:
    return Problem(
        where=str(directory.root),
        found="a run that has not begun to train",
        allowed="a run whose trials are recorded",
        hint="Wait until `cohort status` lists its trials.",
    )
