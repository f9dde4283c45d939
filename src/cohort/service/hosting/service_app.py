"""The application of a service: every API behind one gate, with its OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from cohort.service.access.error_answers import add_error_answers, as_refusal
from cohort.service.access.gate import CallerCache, Gate, GateLimits
from cohort.service.admin.pages import build_service_pages
from cohort.service.dashboard.gpu_price import read_price
from cohort.service.fine_tuning.file_routes import file_routes
from cohort.service.fine_tuning.job_routes import job_routes
from cohort.service.fine_tuning.model_routes import model_routes
from cohort.service.hosting.inference_routes import inference_routes
from cohort.service.hosting.opening import SCRATCH, UPLOADS, OpenService
from cohort.service.hosting.service_metrics import ServiceMetrics
from cohort.service.jobs.room import Room
from cohort.service.tasks.task_routes import TaskParts, task_routes
from cohort.service.usage_book import UsageBook
from cohort.store.errors import StoreError
from cohort.version import __version__

__all__ = ["build_service_app"]

_MIB = 1 << 20


def build_service_app(opened: OpenService, book: UsageBook, *, more: Sequence[APIRouter] = ()) -> FastAPI:
    """Return the application of an open service, whose threads run.

    Its ``state.end_streams``, where it has pages, ends their streams of events.

    Args:
        more: Routes of further APIs.
    """
    app = FastAPI(title="Cohort", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    limits, folder = opened.file.limits, Path(opened.file.folder)
    room = Room(folder, least_bytes=limits.min_free_mib * _MIB)
    metrics = ServiceMetrics()
    most_file = limits.max_file_mib * _MIB
    app.include_router(file_routes(opened.store, room=room, folder=folder / UPLOADS, most_bytes=most_file))
    app.include_router(job_routes(opened.store, bases=tuple(opened.served.bases), room=room))
    app.include_router(model_routes(opened.store, opened.served))
    app.include_router(inference_routes(opened.served, book))
    parts = TaskParts(
        store=opened.store,
        bases=opened.bases,
        room=room,
        nodes=folder / "nodes",
        scratch=folder / SCRATCH,
        limits=opened.settings.check,
    )
    app.include_router(task_routes(parts))
    for routes in more:
        app.include_router(routes)
    app.include_router(_health_routes(opened, metrics))
    add_error_answers(app)
    gate_limits = GateLimits(
        max_body_bytes=limits.max_body_mib * _MIB,
        max_upload_bytes=most_file,
        requests_per_minute_of_address=limits.requests_per_minute_of_address,
    )
    callers = CallerCache(opened.store.keys.find, seconds=gate_limits.key_cache_seconds)
    if opened.file.dashboard != "none":
        pages = build_service_pages(
            opened.store,
            callers=callers,
            nodes=parts.nodes,
            host=opened.file.host,
            can_change=opened.file.dashboard == "change",
            gpu_hour=None if opened.file.gpu_hour is None else read_price(opened.file.gpu_hour),
            key_seconds=gate_limits.key_cache_seconds,
        )
        app.state.end_streams = pages.state.end_streams
        app.add_api_route("/dashboard", _to_the_pages, include_in_schema=False)
        app.mount("/dashboard", pages)
    app.add_middleware(Gate, callers=callers, limits=gate_limits, count_answer=metrics.count_answer)
    return app


def _to_the_pages() -> Response:
    # relative: a proxy may serve all of this below a path of its own
    return RedirectResponse("dashboard/")


def _health_routes(opened: OpenService, metrics: ServiceMetrics) -> APIRouter:
    routes = APIRouter(tags=["health"])
    threads = [base.thread for base in opened.served.bases.values()]
    # the one that runs
    checks: list[asyncio.Future[None]] = []

    def is_well() -> bool:
        return opened.runner.is_alive and all(thread.is_alive and not thread.is_closing for thread in threads)

    @routes.get("/health", summary="Whether the process works")
    async def health() -> Response:
        return Response(status_code=200 if is_well() else 503)

    @routes.get("/ready", summary="Whether requests can be accepted")
    async def ready() -> Response:
        if not is_well():
            return JSONResponse({"status": "stopping"}, status_code=503)
        # a store that does not answer must not take a thread for each of a supervisor's questions
        if not checks or checks[-1].done():
            checks[:] = [asyncio.ensure_future(asyncio.to_thread(opened.store.check))]
        try:
            await asyncio.shield(checks[-1])
        except StoreError as error:
            refusal = as_refusal(error)
            return JSONResponse({"status": refusal.code}, status_code=503, headers=refusal.headers)
        return JSONResponse({"status": "ready"})

    @routes.get("/metrics", summary="Numbers for Prometheus")
    async def numbers() -> Response:
        waiting = await asyncio.to_thread(opened.store.claims.waiting)
        text = metrics.text(
            num_waiting=sum(entry.num_jobs for entry in waiting),
            num_held=opened.runner.num_held,
            is_leading=opened.runner.is_leading,
            of_bases=[own.text(opened.served.bases[name].thread) for name, own in opened.metrics.items()],
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes
