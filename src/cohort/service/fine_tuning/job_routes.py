"""OpenAI's fine-tuning jobs: created, listed, cancelled, paused, resumed; their events and checkpoints."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from cohort.service.access.gate import caller_of
from cohort.service.access.refusals import ServiceError
from cohort.service.fine_tuning.bodies import checkpoint_body, event_body, job_body
from cohort.service.fine_tuning.file_routes import require_room
from cohort.service.fine_tuning.pages import list_body, metadata_filter, page_asked
from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.jobs.job_task import require_usable_options
from cohort.service.jobs.room import Room
from cohort.service.openapi_bodies import query_parameters, request_body
from cohort.service.schema import parse_body
from cohort.store.enums import JobKind
from cohort.store.errors import UnknownIdError
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.keys import Caller

__all__ = ["job_routes", "require_base"]

_MOST_LISTED = 100
_SEED_BITS = 31
_PAGE = query_parameters(after={"type": "string"}, limit={"type": "integer", "minimum": 1, "maximum": _MOST_LISTED})


def job_routes(store: Store, *, bases: Collection[str], room: Room) -> APIRouter:
    """Return the routes of jobs.

    Args:
        bases: The names of the base models that can be tuned.
    """
    routes = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning"])

    def own(request: Request) -> ProjectStore:
        return store.project(caller_of(request.scope).project.id)

    def answer(request: Request, job: Job) -> Response:
        return JSONResponse(job_body(job, organisation_id=caller_of(request.scope).project.organisation_id))

    def found(request: Request, job_id: str) -> Job:
        job = own(request).jobs.get(job_id)
        if job.kind is not JobKind.FINE_TUNING:
            raise UnknownIdError("fine-tuning job", job_id)
        return job

    @routes.post("", summary="Create a fine-tuning job", openapi_extra=request_body(CreateJob))
    async def created(request: Request) -> Response:
        asked = parse_body(CreateJob, await request.body())
        require_room(room)
        job = await asyncio.to_thread(_create, own(request), asked, bases=bases, caller=caller_of(request.scope))
        return answer(request, job)

    @routes.get("", summary="List fine-tuning jobs", openapi_extra=_PAGE)
    async def listed(request: Request) -> Response:
        asked = page_asked(request.query_params, default=20, most=_MOST_LISTED)
        metadata = metadata_filter(request.query_params)
        page = await asyncio.to_thread(
            own(request).jobs.list,
            after=asked.after,
            limit=asked.limit,
            kind=JobKind.FINE_TUNING,
            metadata=metadata or {},
            without_metadata=metadata is None,
        )
        organisation = caller_of(request.scope).project.organisation_id
        bodies = [job_body(job, organisation_id=organisation) for job in page.items]
        return JSONResponse(list_body(bodies, has_more=page.has_more))

    @routes.get("/{job_id}", summary="Retrieve a fine-tuning job")
    async def retrieved(request: Request, job_id: str) -> Response:
        return answer(request, await asyncio.to_thread(found, request, job_id))

    @routes.post("/{job_id}/{action}", summary="Cancel, pause or resume a fine-tuning job")
    async def changed(request: Request, job_id: str, action: str) -> Response:
        if action not in ("cancel", "pause", "resume"):
            raise ServiceError(f"No such call: {action[:60]!r}", status=404)
        await asyncio.to_thread(found, request, job_id)
        actor = f"key {caller_of(request.scope).key.id}"
        return answer(request, await asyncio.to_thread(getattr(own(request).jobs, action), job_id, actor=actor))

    @routes.get("/{job_id}/events", summary="List the events of a fine-tuning job", openapi_extra=_PAGE)
    async def events(request: Request, job_id: str) -> Response:
        asked = page_asked(request.query_params, default=20, most=_MOST_LISTED)
        await asyncio.to_thread(found, request, job_id)
        page = await asyncio.to_thread(own(request).jobs.events, job_id, after=asked.after, limit=asked.limit)
        return JSONResponse(list_body([event_body(event) for event in page.items], has_more=page.has_more))

    @routes.get("/{job_id}/checkpoints", summary="List the checkpoints of a fine-tuning job", openapi_extra=_PAGE)
    async def checkpoints(request: Request, job_id: str) -> Response:
        asked = page_asked(request.query_params, default=10, most=_MOST_LISTED)
        await asyncio.to_thread(found, request, job_id)
        page = await asyncio.to_thread(own(request).jobs.checkpoints, job_id, after=asked.after, limit=asked.limit)
        return JSONResponse(list_body([checkpoint_body(each) for each in page.items], has_more=page.has_more))

    return routes


def require_base(name: str, bases: Collection[str]) -> None:
    """Raise :class:`ServiceError` where no base model has this name."""
    if name not in bases:
        text = f"Model {name[:200]!r} is not available for fine-tuning; use one of {', '.join(sorted(bases))}."
        raise ServiceError(text, status=404, param="model", code="model_not_available")


def _create(own: ProjectStore, asked: CreateJob, *, bases: Collection[str], caller: Caller) -> Job:
    require_base(asked.model, bases)
    require_usable_options(asked)
    for param in ("training_file", "validation_file"):
        file_id = getattr(asked, param)
        if file_id is not None:
            _require_file(own, file_id, param=param)
    new = NewJob(
        base_model=asked.model,
        request=asked.model_dump(mode="json", exclude_none=True),
        kind=JobKind.FINE_TUNING,
        method=asked.method_type,
        suffix=asked.suffix,
        seed=secrets.randbits(_SEED_BITS) if asked.seed is None else asked.seed,
        training_file=asked.training_file,
        validation_file=asked.validation_file,
        hyperparameters=asked.asked.model_dump(mode="json"),
        metadata=asked.metadata,
        created_by=caller.key.id,
    )
    message = f"Created fine-tuning job for {asked.model}"
    return own.jobs.create(new, events=[NewEvent(message=message), NewEvent(message="Validating training file")])


def _require_file(own: ProjectStore, file_id: str, *, param: str) -> None:
    try:
        file = own.files.get(file_id)
    except UnknownIdError:
        text = f"invalid {param}: {file_id[:200]!r} does not exist"
        raise ServiceError(text, param=param, code="invalid_file_id") from None
    if file.purpose != "fine-tune":
        text = f"invalid {param}: {file_id} has the purpose {file.purpose}; upload it with purpose fine-tune"
        raise ServiceError(text, param=param, code="invalid_file_purpose")
