"""What a person may do to a run from a page: said in words before it is done, then asked of the run itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.requests.asking import Asked, ask, check_all
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest, person_here

__all__ = ["WAIT_SECONDS", "NotRunningError", "act", "preview", "read_request", "stop_run", "told"]

WAIT_SECONDS = 8.0


class NotRunningError(CohortError):
    """No process of this machine trains the run."""


def read_request(body: Mapping[str, Any]) -> TrialRequest:
    """Return the request that a page sends; its values are checked later, against the run.

    Raises:
        InputError: it is none of the requests that there are.
    """
    kinds = [kind.value for kind in RequestKind]
    kind, trial_id, values = body.get("kind"), body.get("trial"), body.get("values", {})
    if kind not in kinds:
        raise InputError(
            Problem(where="kind", found=repr(kind)[:80], allowed=", ".join(kinds), hint="Load the page again.")
        )
    is_number = isinstance(trial_id, int) and not isinstance(trial_id, bool)
    if is_number == (kind == RequestKind.ADD):
        raise InputError(
            Problem(where="trial", found=repr(trial_id)[:80], allowed="the number of a trial, for add none", hint="")
        )
    is_new = kind in (RequestKind.CLONE, RequestKind.ADD)
    if not isinstance(values, dict) or (values and not is_new):
        raise InputError(
            Problem(
                where="values", found=repr(values)[:80], allowed="hyperparameters of a clone or a new trial", hint=""
            )
        )
    warm_start = body.get("warm_start") is True and kind == RequestKind.CLONE
    who = f"{person_here()}, from the dashboard"
    return TrialRequest(kind=RequestKind(kind), trial_id=trial_id, values=values, warm_start=warm_start, who=who)


def preview(directory: RunDirectory, request: TrialRequest, *, resumed_by: str = "") -> dict[str, Any]:
    """Return what a request would do, and how it is taken back; nothing is done.

    Args:
        resumed_by: What goes on with a run that does not train; nothing: the command that does.

    Raises:
        InputError: the run would refuse it.
    """
    check_all(directory.root, [request])
    is_training = directory.lock().holder() is not None
    with RunReader.open(directory.database) as reader:
        trials = {trial.trial_id: trial for trial in reader.trials()} if request.trial_id is not None else {}
    trial = None if request.trial_id is None else trials.get(request.trial_id)
    number = request.trial_id
    undo = ""
    if request.kind is RequestKind.STOP and trial is not None:
        does = (
            f"Trial {number} ends after its present step ({trial.steps_done} of {trial.planned_steps} are done). Its "
            "best checkpoint still competes for the result, and its slot goes to the next trial."
        )
        undo = f"Resume trial {number}: it goes on from where it stopped, while the sweep still runs."
    elif request.kind is RequestKind.RESUME and trial is not None:
        does = (
            f"Trial {number} goes on from step {trial.steps_done} of {trial.planned_steps} when a slot is free. "
            "No exit rule stops it again."
        )
        undo = f"Stop trial {number} again."
    elif request.kind is RequestKind.KEEP:
        does = f"No exit rule may stop trial {number} from now on; a loss that is no number still does."
        undo = "There is none: a kept trial stays kept. You can stop it yourself."
    else:
        given = ", ".join(f"{name} {value}" for name, value in request.values.items()) or "no changed values"
        source = "A new trial" if number is None else f"A copy of trial {number}"
        begins = f", beginning with the weights of the best checkpoint of trial {number}" if request.warm_start else ""
        does = f"{source} with {given} is trained from its first step{begins}. It takes a slot when one is free."
        undo = "Stop the new trial; the steps that it has done are paid for."
    when = (
        "The run takes it up between two steps; no other trial's numbers change."
        if is_training
        else f"No process trains this run now: {resumed_by or _resume(directory)} takes it up first."
    )
    return {"asked": request.described, "does": does, "undo": undo, "when": when}


def act(directory: RunDirectory, request: TrialRequest) -> dict[str, Any]:
    """Hand a request in and wait a while for the run's answer.

    Raises:
        InputError: the run refuses it.
        StorageFullError: the disk is full; nothing was handed in.
    """
    return told(ask(directory.root, request, wait_seconds=WAIT_SECONDS), request=request, resumed_by=_resume(directory))


def told(asked: Asked, *, request: TrialRequest, resumed_by: str) -> dict[str, Any]:
    """Return what a page says of a request that was handed in."""
    if asked.answer is not None:
        return {"text": asked.answer.text, "trial": asked.answer.trial_id, "is_taken_up": True}
    text = (
        f"{request.described}: asked; the run takes it up after its present step"
        if asked.is_training
        else f"{request.described}: asked; {resumed_by} takes it up first"
    )
    return {"text": text, "trial": request.trial_id, "is_taken_up": False}


def _resume(directory: RunDirectory) -> str:
    return f"`cohort resume {directory.root}`"


def stop_run(directory: RunDirectory, *, is_preview: bool) -> dict[str, Any]:
    """End the process that trains the run as Ctrl-C would: it saves its state first.

    Args:
        is_preview: Say what it would do, and do nothing.

    Raises:
        NotRunningError: no process of this machine trains it, or it belongs to someone else.
    """
    process = directory.lock().holding_process()
    if process is None:
        holder = directory.lock().holder()
        where = f"{holder} trains it: stop it there" if holder else "no process trains it"
        raise NotRunningError(f"the run cannot be stopped from here: {where}")
    resume = f"cohort resume {directory.root}"
    if is_preview:
        return {
            "asked": "stop the run",
            "does": f"Process {process} saves the state of all trials after its present step and ends, as after "
            "Ctrl-C. In a queue, it is the process that works on all its tasks.",
            "undo": f"`{resume}` goes on from there with the same result.",
            "when": "Now.",
        }
    try:
        os.kill(process, signal.SIGTERM)
    except OSError as error:
        raise NotRunningError(f"process {process} cannot be stopped: {error.strerror}") from error
    return {"text": f"Process {process} was asked to save and end. Go on with `{resume}`.", "is_taken_up": True}
