"""The routes of a service's pages, behind a guard of their own: browsers send cookies, clients send keys.

Tenants see the runs of their project; administrators see all tenants as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from cohort.core.errors import InputError
from cohort.service.access.gate import CallerCache
from cohort.service.admin.changes import Change, read_change
from cohort.service.admin.service_view import project_view, service_view
from cohort.service.dashboard.gpu_price import GpuPrice
from cohort.service.dashboard.json_answers import NotAllowedError, answering, http_error, json_body
from cohort.service.dashboard.page_frame import PageFrame
from cohort.service.dashboard.page_guard import PageGuard
from cohort.service.dashboard.run_pages import RunFeeds, RunPages
from cohort.service.dashboard.runs_folder import UnknownRunError
from cohort.service.dashboard.sessions import Session
from cohort.service.tenant_pages.key_sessions import KeySession, KeySessions, caller_of_page, is_admin
from cohort.service.tenant_pages.project_runs import AbsentRunError, ProjectRuns
from cohort.store.enums import KeyScope
from cohort.store.errors import IllegalTransitionError, NameTakenError, UnknownIdError
from cohort.store.store import Store

__all__ = ["build_service_pages"]

_KEY_HINT = "one of your project with the scope tasks, or an administrator's, with the scope admin"
_OF_TENANTS, _OF_ADMINS = ("runs", "compare"), ("service", "runs", "compare")
_MOST_RUNS = 512
_STATUS_OF: dict[type[Exception], int] = {
    InputError: 400,
    UnknownIdError: 404,
    UnknownRunError: 404,
    AbsentRunError: 409,
    NameTakenError: 409,
    IllegalTransitionError: 409,
}


def build_service_pages(
    store: Store,
    *,
    callers: CallerCache,
    nodes: Path,
    host: str,
    can_change: bool,
    gpu_hour: GpuPrice | None = None,
    poll_seconds: float = 1.0,
    key_seconds: float = 2.0,
) -> Starlette:
    """Return the application, to be mounted below a path of the service.

    Its ``state.end_streams`` ends the streams of events, which go on as long as the viewer stays.

    Args:
        callers: Says whose key a text is.
        nodes: The folder of all nodes that this process sees, with their run directories.
        host: The address that is listened on.
        can_change: Whether administrators may change tenants and keys; without it every request that would is refused.
        gpu_hour: What an hour of one GPU costs; None shows no money.
        poll_seconds: The shortest time between two looks at a run that someone watches.
        key_seconds: So long a session that ended on another server process is taken for open.
    """
    sessions = KeySessions(store.page_sessions, callers=callers, seconds=key_seconds)
    feeds = RunFeeds(poll_seconds=poll_seconds, most=_MOST_RUNS)
    door = ProjectRuns(store, nodes=nodes, feeds=feeds, most=_MOST_RUNS)
    runs = RunPages(door, feeds)

    def facts(session: Session) -> dict[str, Any]:
        assert isinstance(session, KeySession), "each session is of a key"
        admin = is_admin(session.caller)
        return {
            "pages": list(_OF_ADMINS if admin else _OF_TENANTS),
            "can_control": KeyScope.TASKS in session.caller.key.scopes,
            "can_change": admin and can_change,
            "has_jobs": True,
            "gpu_hour": None if gpu_hour is None else gpu_hour.as_json(),
        }

    frame = PageFrame(sessions, pages=_OF_TENANTS, key_hint=_KEY_HINT, facts=facts)
    answer = answering(_STATUS_OF, words=door.words)

    def of_admins(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
        async def checked(request: Request) -> Any:
            if not is_admin(caller_of_page(request)):
                raise NotAllowedError("this key lacks the scope admin")
            return await handler(request)

        return answer(checked)

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
        # as `cohort tenants` names the user of the machine
        return await asyncio.to_thread(found.act, f"key {caller_of_page(request).key.id}, from the pages")

    app = Starlette(
        routes=[
            *frame.routes(),
            *runs.routes(_STATUS_OF),
            Route("/api/runs", answer(door.runs)),
            Route("/api/job", answer(door.job)),
            Route("/api/service", of_admins(overview)),
            Route("/api/service/project", of_admins(project)),
            Route("/api/service/preview", of_admins(preview), methods=["POST"]),
            Route("/api/service/change", of_admins(change), methods=["POST"]),
        ],
        middleware=[Middleware(PageGuard, sessions=sessions, host=host)],
        exception_handlers={HTTPException: http_error},
    )
    app.state.end_streams = runs.ending.set
    return app
