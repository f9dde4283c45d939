"""Cohort's own API: tasks as their files have them, their trials, plans, reports and adapters."""

from __future__ import annotations

import asyncio
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import ValidationError
from starlette.background import BackgroundTask

from cohort.adapter_files.choose import chosen_adapter, trials_with_adapters
from cohort.core.errors import InputError
from cohort.report.writing import write_report
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.runs.results.results_table import results_json
from cohort.runs.status import read_status
from cohort.service.access.gate import caller_of
from cohort.service.access.refusals import ServiceError
from cohort.service.fine_tuning.bodies import event_body
from cohort.service.fine_tuning.file_routes import require_room
from cohort.service.fine_tuning.pages import list_body, page_asked
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.room import Room
from cohort.service.jobs.row_checks import CheckLimits
from cohort.service.openapi_bodies import query_parameters, request_body
from cohort.service.schema import parse_body
from cohort.service.tasks.plans import plan_task
from cohort.service.tasks.run_places import run_of
from cohort.service.tasks.schema import PlanTask, SubmitTask, TrialChange
from cohort.service.tasks.submission import base_of_task, files_of_task, require_task
from cohort.service.tasks.task_body import planned_job, task_body
from cohort.service.tasks.trial_changes import change_trial
from cohort.store.enums import JobKind
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.keys import Caller
from cohort.tasks.loading import task_json_schema

__all__ = ["TaskParts", "task_routes"]

_MOST_LISTED = 100
_PAGE = query_parameters(after={"type": "string"}, limit={"type": "integer", "minimum": 1, "maximum": _MOST_LISTED})
_PLANS_AT_ONCE = 2
_WAIT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class TaskParts:
    """What the routes need.

    Attributes:
        bases: The base models by name.
        nodes: The folder of all nodes that this process sees.
        scratch: A folder for what lies there for a moment.
    """

    store: Store
    bases: Mapping[str, BaseForJobs]
    room: Room
    nodes: Path
    scratch: Path
    limits: CheckLimits


def task_routes(parts: TaskParts) -> APIRouter:
    """Return the routes of tasks."""
    routes = APIRouter(prefix="/v1/cohort", tags=["tasks"])
    planning = asyncio.Semaphore(_PLANS_AT_ONCE)

    def own(request: Request) -> ProjectStore:
        return parts.store.project(caller_of(request.scope).project.id)

    async def of_job(request: Request, job_id: str, read: Callable[[Job], Any]) -> Any:
        def found() -> Any:
            return read(own(request).jobs.get(job_id))

        return await asyncio.to_thread(found)

    async def of_run(request: Request, job_id: str, read: Callable[[Path], Any]) -> Any:
        return await of_job(request, job_id, lambda job: read(run_of(job, nodes=parts.nodes)))

    async def changed_trial(request: Request, job_id: str, change: TrialRequest) -> Response:
        def change_of(job: Job) -> dict[str, Any]:
            return _changed(parts, job, change, actor=_who(request))

        return JSONResponse(await of_job(request, job_id, change_of))

    @routes.get("/schema", summary="The JSON schema of a task")
    async def schema() -> Response:
        return JSONResponse(await asyncio.to_thread(task_json_schema))

    @routes.post("/plan", summary="What a task would take", openapi_extra=request_body(PlanTask))
    async def plan(request: Request) -> Response:
        asked = parse_body(PlanTask, await request.body())
        require_room(parts.room)

        def found() -> dict[str, Any]:
            store = own(request)
            require_task(asked.task, store, bases=parts.bases)
            base = parts.bases[base_of_task(asked.task)]
            job = planned_job(asked.task, base=base.name)
            content, limits = store.files.content, parts.limits
            return plan_task(job, base=base, content=content, limits=limits, folder=parts.scratch)

        async with planning:
            return JSONResponse(await asyncio.to_thread(found))

    @routes.post("/tasks", summary="Submit a task", openapi_extra=request_body(SubmitTask))
    async def submitted(request: Request) -> Response:
        asked = parse_body(SubmitTask, await request.body())
        require_room(parts.room)
        job = await asyncio.to_thread(_submit, own(request), asked, parts=parts, caller=caller_of(request.scope))
        return JSONResponse(task_body(job))

    @routes.get("/tasks", summary="List tasks", openapi_extra=_PAGE)
    async def listed(request: Request) -> Response:
        asked = page_asked(request.query_params, default=20, most=_MOST_LISTED)
        page = await asyncio.to_thread(own(request).jobs.list, after=asked.after, limit=asked.limit, kind=JobKind.TASK)
        return JSONResponse(list_body([task_body(job) for job in page.items], has_more=page.has_more))

    @routes.get("/tasks/{task_id}", summary="Retrieve a task")
    async def retrieved(request: Request, task_id: str) -> Response:
        return JSONResponse(await of_job(request, task_id, task_body))

    @routes.get("/tasks/{task_id}/events", summary="List the events of a task", openapi_extra=_PAGE)
    async def events(request: Request, task_id: str) -> Response:
        asked = page_asked(request.query_params, default=20, most=_MOST_LISTED)
        page = await asyncio.to_thread(own(request).jobs.events, task_id, after=asked.after, limit=asked.limit)
        return JSONResponse(list_body([event_body(event) for event in page.items], has_more=page.has_more))

    @routes.get("/tasks/{task_id}/trials", summary="The trials of a task, best first")
    async def trials(request: Request, task_id: str) -> Response:
        return JSONResponse(await of_run(request, task_id, _trials))

    @routes.get("/tasks/{task_id}/report", summary="The report of a task, one page of HTML")
    async def report(request: Request, task_id: str) -> Response:
        page = await of_run(request, task_id, lambda run: _report(run, parts.scratch))
        # made from a tenant's rows: it may run no script of anyone else's, and open nothing
        headers = {
            "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:",
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(page, headers=headers)

    @routes.get(
        "/tasks/{task_id}/export",
        summary="An adapter as a zip of PEFT's files",
        openapi_extra=query_parameters(trial={"type": "integer", "minimum": 0}),
    )
    async def export(request: Request, task_id: str) -> Response:
        trial = _trial_number(request.query_params.get("trial"))
        archive = await of_run(request, task_id, lambda run: _zipped(run, trial=trial, scratch=parts.scratch))
        return FileResponse(
            archive, media_type="application/zip", filename=f"{task_id}.zip", background=BackgroundTask(archive.unlink)
        )

    @routes.post("/tasks/{task_id}/trials", summary="Add a trial", openapi_extra=request_body(TrialChange))
    async def added(request: Request, task_id: str) -> Response:
        asked = _change_of(await request.body())
        return await changed_trial(request, task_id, TrialRequest(kind=RequestKind.ADD, values=asked.values))

    @routes.post(
        "/tasks/{task_id}/trials/{trial}/{action}",
        summary="Stop, resume, keep or clone a trial",
        openapi_extra=request_body(TrialChange),
    )
    async def changed(request: Request, task_id: str, trial: str, action: str) -> Response:
        kinds = {kind.value: kind for kind in RequestKind if kind is not RequestKind.ADD}
        if action not in kinds:
            raise ServiceError(f"No such call: {action[:60]!r}; there are {', '.join(kinds)}.", status=404)
        asked, number = _change_of(await request.body()), _trial_number(trial)
        if (asked.values or asked.warm_start) and kinds[action] is not RequestKind.CLONE:
            raise ServiceError(f"values and warm_start go with clone, not with {action}.", param="values")
        change = TrialRequest(kind=kinds[action], trial_id=number, values=asked.values, warm_start=asked.warm_start)
        return await changed_trial(request, task_id, change)

    @routes.post("/tasks/{task_id}/{action}", summary="Cancel, pause or resume a task")
    async def moved(request: Request, task_id: str, action: str) -> Response:
        if action not in ("cancel", "pause", "resume"):
            raise ServiceError(f"No such call: {action[:60]!r}", status=404)
        job = await asyncio.to_thread(getattr(own(request).jobs, action), task_id, actor=_who(request))
        return JSONResponse(task_body(job))

    return routes


def _submit(own: ProjectStore, asked: SubmitTask, *, parts: TaskParts, caller: Caller) -> Job:
    require_task(asked.task, own, bases=parts.bases)
    files = files_of_task(asked.task)
    seed = asked.task.get("training", {}).get("seed", 0)
    new = NewJob(
        base_model=base_of_task(asked.task),
        request=asked.model_dump(mode="json", exclude_none=True),
        kind=JobKind.TASK,
        suffix=asked.suffix,
        seed=seed if isinstance(seed, int) else 0,
        training_file=files["train"][0],
        validation_file=files.get("validation", [None])[0],
        metadata=asked.metadata,
        created_by=caller.key.id,
        idempotency_key=asked.idempotency_key,
    )
    return own.jobs.create(new, events=[NewEvent(message=f"Created task for {new.base_model}")])


def _who(request: Request) -> str:
    return f"key {caller_of(request.scope).key.id}"


def _change_of(body: bytes) -> TrialChange:
    try:
        return TrialChange.model_validate_json(body) if body.strip() else TrialChange()
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "body"
        raise ServiceError(f"{name}: {first['msg']}", param=name, code="invalid_value") from None


def _trial_number(written: str | None) -> int | None:
    if written is None:
        return None
    if not (written.isascii() and written.isdigit() and len(written) < 10):
        raise ServiceError(f"trial is {written[:30]!r}; write the number of a trial.", param="trial")
    return int(written)


def _trials(run: Path) -> dict[str, Any]:
    status = read_status(RunDirectory(run))
    return {
        "object": "cohort.trials",
        "state": status.state,
        "seconds_left": status.seconds_left,
        "tokens_per_second": status.tokens_per_second,
        **results_json(status.results),
    }


def _report(run: Path, scratch: Path) -> bytes:
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="report-", dir=scratch) as folder:
        path = Path(folder) / "report.html"
        with RunReader.open(RunDirectory(run).database) as reader:
            write_report(path, reader=reader, reload_seconds=None)
        return path.read_bytes()


def _zipped(run: Path, *, trial: int | None, scratch: Path) -> Path:
    """Return an archive, which the caller removes once it is sent."""
    scratch.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="export-", suffix=".zip", dir=scratch)
    try:
        with (
            chosen_adapter(RunDirectory(run), trial_id=trial) as folder,
            os.fdopen(handle, "wb") as stream,
            zipfile.ZipFile(stream, "w") as archive,
        ):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(folder).as_posix())
    except InputError:
        Path(name).unlink()
        raise ServiceError(_why_no_adapter(run, trial=trial), param="trial", code="no_adapter") from None
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)


def _why_no_adapter(run: Path, *, trial: int | None) -> str:
    """Return why there is no adapter, in words of the API: those of a run name processes and paths of the server."""
    there = trials_with_adapters(RunDirectory(run))
    if not there:
        return f"The job {run.name} has no checkpoint yet; ask again when a trial has been evaluated."
    if trial in there:
        return f"The adapter of trial {trial} cannot be made: the base model that {run.name} began with is gone."
    known = f"These trials have an adapter: {', '.join(map(str, there))}; choose one of them (?trial=N, or --trial N)."
    if trial is None:
        return f"The job {run.name} has no best adapter yet: it is written when the job ends. {known}"
    return f"Trial {trial} of the job {run.name} has no adapter. {known}"


def _changed(parts: TaskParts, job: Job, change: TrialRequest, *, actor: str) -> dict[str, Any]:
    run = run_of(job, nodes=parts.nodes)
    try:
        asked = change_trial(parts.store, job, change, run=run, actor=actor, wait_seconds=_WAIT_SECONDS)
    except InputError as error:
        # the words name the run's directory, which is the server's
        raise ServiceError(str(error).replace(str(run), run.name), code="not_possible") from None
    body: dict[str, Any] = {"object": "cohort.trial_request", "request": change.text, "values": dict(change.values)}
    body |= {"is_taken_up": asked.answer is not None, "is_training": asked.is_training}
    return body if asked.answer is None else {**body, "text": asked.answer.text, "trial": asked.answer.trial_id}
