"""``cohort trials``: lists a run's trials, and stops, resumes, keeps, clones or adds some while it trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, RunDirArgument
from cohort.cli.exits import exits
from cohort.cli.hosted.submit import ServerOption, print_remote_change, print_remote_trials

if TYPE_CHECKING:
    from cohort.runs.requests.asking import Asked
    from cohort.runs.requests.trial_requests import TrialRequest

__all__ = ["trials"]


def trials(
    context: typer.Context,
    run_dir: RunDirArgument,
    action: Annotated[
        str | None, typer.Argument(metavar="[stop|resume|keep|clone|add]", help="Without one, the trials are listed.")
    ] = None,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[TRIAL]...", help="Numbers of trials.")] = None,
    warm_start: Annotated[
        bool, typer.Option("--warm-start", help="A clone begins with the weights of the trial's best checkpoint.")
    ] = False,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="The longest wait for the run.")] = 10.0,
    server: ServerOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the trials of a run, or change them while it trains.

    stop ends trials early. resume lets stopped ones go on, and keep lets no exit rule stop them. clone trains a copy
    of a trial with other values: clone 7 --learning_rate 3e-4. add trains a new one: add --r 64. Values are the
    hyperparameters of the task file. The run takes it up between two steps; no other trial's numbers change.
    """
    with exits(as_json=as_json, debug=debug):
        overrides = context.obj or ()
        if server is not None:
            _of_service(run_dir, server, action, numbers or [], overrides, warm_start=warm_start, as_json=as_json)
            return
        _refuse_exchanged(run_dir, action, numbers or [])
        if action is None:
            _refuse_options(overrides, warm_start=warm_start)
            _print_trials(run_dir, as_json=as_json)
            return
        from cohort.runs.requests.asking import ask, check_all

        requests = _requests(action, numbers or [], overrides, warm_start=warm_start)
        # all before the first: a command that is refused has changed nothing
        check_all(run_dir, requests)
        for request in requests:
            _print_asked(run_dir, request, ask(run_dir, request, wait_seconds=wait), as_json=as_json)


def _of_service(
    task_id: Path,
    server: str,
    action: str | None,
    numbers: Sequence[int],
    overrides: Sequence[str],
    *,
    warm_start: bool,
    as_json: bool,
) -> None:
    if action is None:
        _refuse_options(overrides, warm_start=warm_start)
        print_remote_trials(task_id, server, as_json=as_json)
        return
    # what is wrong with the command line is reported here; what the run refuses, the service says
    requests = _requests(action, numbers, overrides, warm_start=warm_start)
    values = requests[0].values
    print_remote_change(task_id, server, action, numbers, values=values, warm_start=warm_start, as_json=as_json)


def _requests(action: str, numbers: Sequence[int], overrides: Sequence[str], *, warm_start: bool) -> list[TrialRequest]:
    """Return what the command line asks for, a request for each trial.

    Raises:
        InputError: it asks for nothing that there is.
    """
    from cohort.core.errors import InputError, Problem
    from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
    from cohort.tasks.trial_values import trial_values_of

    where, kinds = f"cohort trials {action}", [kind.value for kind in RequestKind]
    if action not in kinds:
        hint = "Write for example `cohort trials RUN_DIR stop 7`."
        raise InputError(Problem(where="cohort trials", found=repr(action), allowed=", ".join(kinds), hint=hint))
    kind = RequestKind(action)
    problems = []
    if kind is RequestKind.ADD and numbers:
        allowed = "no number: the run gives the new trial one"
        hint = "To copy a trial, write clone."
        problems.append(Problem(where=where, found=f"trial {numbers[0]}", allowed=allowed, hint=hint))
    if kind is not RequestKind.ADD and not numbers:
        hint = "List the trials with `cohort trials RUN_DIR`."
        problems.append(Problem(where=where, found="no trial", allowed="the number of a trial", hint=hint))
    if warm_start and kind is not RequestKind.CLONE:
        hint = "Leave it out, or write clone."
        problems.append(Problem(where="--warm-start", found=action, allowed="clone", hint=hint))
    if overrides and kind not in (RequestKind.CLONE, RequestKind.ADD):
        hint = (
            "Leave it out; to train a copy with other hyperparameters, write for example clone 7 --learning_rate 3e-4."
        )
        problems.append(Problem(where=where, found=overrides[0], allowed="no values", hint=hint))
    if problems:
        raise InputError(problems)
    if kind not in (RequestKind.CLONE, RequestKind.ADD):
        return [TrialRequest(kind=kind, trial_id=number) for number in numbers]
    values = trial_values_of(overrides)
    return [
        TrialRequest(kind=kind, trial_id=number, values=values, warm_start=warm_start)
        for number in (numbers if kind is RequestKind.CLONE else [None])
    ]


def _refuse_exchanged(run_dir: Path, action: str | None, numbers: Sequence[int]) -> None:
    """Refuse ``stop RUN_DIR 7``, whose words are right and in another order."""
    from cohort.core.errors import InputError, Problem
    from cohort.runs.requests.trial_requests import RequestKind

    if action is None or str(run_dir) not in [kind.value for kind in RequestKind] or run_dir.exists():
        return
    given = " ".join(map(str, numbers))
    raise InputError(
        Problem(
            where="cohort trials",
            found=f"{run_dir} before the run's directory",
            allowed="the run's directory first",
            hint=f"Write `cohort trials {action} {run_dir}{' ' if given else ''}{given}`.",
        )
    )


def _refuse_options(overrides: Sequence[str], *, warm_start: bool) -> None:
    from cohort.core.errors import InputError, Problem

    found = overrides[0] if overrides else "--warm-start" if warm_start else None
    if found is not None:
        hint = "Write for example `cohort trials RUN_DIR clone 7 --learning_rate 3e-4`."
        raise InputError(Problem(where="cohort trials", found=found, allowed="values for clone and add", hint=hint))


def _print_trials(run_dir: Path, *, as_json: bool) -> None:
    from cohort.cli.tables.run_results import print_trials
    from cohort.runs.directory import RunDirectory
    from cohort.runs.status import read_status

    print_trials(read_status(RunDirectory.open(run_dir)), as_json=as_json)


def _print_asked(run_dir: Path, request: TrialRequest, asked: Asked, *, as_json: bool) -> None:
    if as_json:
        answer = asked.answer
        body: dict[str, object] = {"request": request.text, "values": dict(request.values)}
        body |= {"is_taken_up": answer is not None, "is_training": asked.is_training}
        print(json.dumps(body | ({} if answer is None else {"text": answer.text, "trial": answer.trial_id})))
    elif asked.answer is not None:
        print(asked.answer.text)
    elif asked.is_training:
        print(f"{request.described}: asked; the run takes it up after its present step (see `cohort trials {run_dir}`)")
    else:
        print(
            f"{request.described}: asked; the run does not train now, and `cohort resume {run_dir}` takes it up first"
        )
