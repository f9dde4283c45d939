"""The routes of a service's pages, behind a guard of their own: browsers send cookies, clients send keys."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from cohort.core.errors import InputError
from cohort.service.access.gate import CallerCache
from cohort.service.admin.admin_sessions import AdminSessions
from cohort.service.admin.changes import Change, read_change
from cohort.service.admin.service_view import project_view, service_view
from cohort.service.dashboard.gpu_price import GpuPrice
from cohort.service.dashboard.json_answers import NotAllowedError, answering, http_error, json_body
from cohort.service.dashboard.page_frame import PageFrame
from cohort.service.dashboard.page_guard import PageGuard, key_of
from cohort.store.errors import NameTakenError, UnknownIdError
from cohort.store.store import Store

__all__ = ["build_service_pages"]

_KEY_HINT = "one with the scope admin, such as the first key that the service printed, or one of `cohort keys create`"


def build_service_pages(
    store: Store, *, callers: CallerCache, host: str, can_change: bool, gpu_hour: GpuPrice | None = None
) -> Starlette:
    """Return the application, to be mounted below a path of the service.

    Args:
        callers: Says whose key a text is.
        host: The address that is listened on.
        gpu_hour: What an hour of one GPU costs; None shows no money.
        can_change: Whether the pages may change tenants and keys; without it every request that would is refused.
    """
    sessions = AdminSessions(callers)
    facts = {"can_control": can_change, "gpu_hour": None if gpu_hour is None else gpu_hour.as_json()}
    frame = PageFrame(sessions, pages=("service",), key_hint=_KEY_HINT, facts=lambda: facts)
    answer = answering({InputError: 400, UnknownIdError: 404, NameTakenError: 409})

    async def overview(_: Request) -> Any:
        return await asyncio.to_thread(service_view, store)

    async def project(request: Request) -> Any:
        return await asyncio.to_thread(project_view, store, request.query_params.get("project", "")[:200])

    async def asked(request: Request) -> Change:
        if not can_change:
            raise NotAllowedError("these pages only show; write `dashboard: change` into service.yaml to change")
        return await asyncio.to_thread(read_change, store, await json_body(request))

    async def preview(request: Request) -> Any:
        return (await asked(request)).preview

    async def change(request: Request) -> Any:
        found = await asked(request)
        caller = await sessions.caller(key_of(request.scope))
        # as `cohort tenants` names the user of the machine
        return await asyncio.to_thread(found.act, f"key {caller.key.id}, from the pages")

    return Starlette(
        routes=[
            *frame.routes(),
            Route("/api/service", answer(overview)),
            Route("/api/service/project", answer(project)),
            Route("/api/service/preview", answer(preview), methods=["POST"]),
            Route("/api/service/change", answer(change), methods=["POST"]),
        ],
        middleware=[Middleware(PageGuard, sessions=sessions, host=host)],
        exception_handlers={HTTPException: http_error},
    )
