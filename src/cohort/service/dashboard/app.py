"""The application over a folder of runs: files of pages, runs, queues, the machine, and the playground."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cohort.core.errors import InputError
from cohort.service.dashboard.controls import NotRunningError
from cohort.service.dashboard.folder_runs import FolderRuns
from cohort.service.dashboard.json_answers import answering, http_error, json_answer, json_body
from cohort.service.dashboard.machine_page import machine_page
from cohort.service.dashboard.model_server import NoModelServerError
from cohort.service.dashboard.page_frame import PageFrame
from cohort.service.dashboard.page_guard import PageGuard
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.queue_page import queue_page
from cohort.service.dashboard.run_pages import RunFeeds, RunPages
from cohort.service.dashboard.runs_folder import RunsFolder, UnknownRunError
from cohort.service.dashboard.runs_view import RunRows
from cohort.service.dashboard.sessions import OwnSessions, Session
from cohort.service.dashboard.settings import DashboardSettings

__all__ = ["build_dashboard"]

_PAGES = ("runs", "compare", "playground", "queue", "system")
_KEY_HINT = "the value of --api-key or COHORT_API_KEY that it was started with"
# what a page may say of an answer, besides the prompt
_OF_A_PROMPT: tuple[str, ...] = ("model", "max_tokens", "temperature")
_STATUS_OF: dict[type[Exception], int] = {
    UnknownRunError: 404,
    InputError: 400,
    NotRunningError: 409,
    NoModelServerError: 502,
}


def build_dashboard(settings: DashboardSettings) -> Starlette:
    """Return the application over one folder of runs; it can be mounted below any path.

    Its ``state.end_streams`` ends the streams of events, which go on as long as the viewer stays.
    """
    folder, sessions = RunsFolder(settings.root), OwnSessions(settings.api_keys)
    feeds = RunFeeds(poll_seconds=settings.poll_seconds)
    runs = RunPages(FolderRuns(folder, can_control=settings.can_control), feeds)
    pages = _Pages(settings, folder, feeds)
    frame = PageFrame(sessions, pages=_PAGES, key_hint=_KEY_HINT, facts=pages.session_facts)
    answer = answering(_STATUS_OF)
    routes = [
        *frame.routes(),
        *runs.routes(_STATUS_OF),
        Route("/api/runs", answer(pages.runs)),
        Route("/api/queues", answer(pages.queues)),
        Route("/api/queue", answer(pages.queue)),
        Route("/api/machine", answer(pages.machine)),
        Route("/api/playground", answer(pages.models)),
        Route("/api/playground", pages.playground, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(PageGuard, sessions=sessions, host=settings.host)],
        exception_handlers={HTTPException: http_error},
    )
    app.state.end_streams = runs.ending.set
    return app


class _Pages:
    """The handlers of what is not about one run."""

    def __init__(self, settings: DashboardSettings, folder: RunsFolder, feeds: RunFeeds) -> None:
        self.settings, self.folder = settings, folder
        self._feeds = feeds
        self._rows = RunRows()

    def session_facts(self, session: Session) -> dict[str, Any]:
        """Return what a page gets once it is signed in."""
        del session
        price = self.settings.gpu_hour
        facts = {"can_control": self.settings.can_control, "root": str(self.folder.root)}
        return {**facts, "gpu_hour": None if price is None else price.as_json()}

    async def runs(self, _: Request) -> Any:
        runs, queues = self.folder.runs(), self.folder.queues()
        rows = await self._rows.rows({name: self._feeds.of(run).followed for name, run in runs.items()})
        return {"root": str(self.folder.root), "runs": rows, "queues": sorted(queues)}

    async def queues(self, _: Request) -> Any:
        return {"queues": sorted(await run_in_threadpool(self.folder.queues))}

    async def queue(self, request: Request) -> Any:
        return await run_in_threadpool(queue_page, self.folder.queue(request.query_params.get("queue", ".")))

    async def machine(self, _: Request) -> Any:
        return await run_in_threadpool(machine_page, self.folder.root)

    async def models(self, _: Request) -> Any:
        server = self.settings.models
        if server is None:
            return {"url": "", "models": []}
        return {"url": server.url, "models": await run_in_threadpool(server.models)}

    async def playground(self, request: Request) -> Response:
        """Stream the answer of one model, a line of JSON for each piece."""
        server, asked = self.settings.models, await json_body(request)
        if server is None:
            return json_answer({"error": "this dashboard has no server of models"}, status=404)
        prompt, is_chat = str(asked.get("prompt", "")), asked.get("chat") is True
        body: dict[str, Any] = {name: asked[name] for name in _OF_A_PROMPT if name in asked}
        body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}

        async def lines() -> AsyncIterator[bytes]:
            async for piece in server.stream(body, is_chat=is_chat):
                yield dumped(piece) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")
