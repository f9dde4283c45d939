"""The routes of the pages: static files, JSON about runs, events of a run that goes on, and what a person asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from cohort import report
from cohort.core.errors import CohortError, InputError
from cohort.core.input_values.whole_numbers import read_whole
from cohort.report.styles import PALETTE
from cohort.runs.reader import RunReader
from cohort.service.dashboard.controls import NotRunningError, act, preview, read_request, stop_run
from cohort.service.dashboard.curve_points import evaluation_curves, pace_curve, train_curves
from cohort.service.dashboard.followed_run import FollowedRun
from cohort.service.dashboard.machine_page import machine_page
from cohort.service.dashboard.model_server import NoModelServerError
from cohort.service.dashboard.page_guard import COOKIE, PageGuard, session_of
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.queue_page import queue_page
from cohort.service.dashboard.rollout_view import rollout_curves
from cohort.service.dashboard.run_feed import RunFeed
from cohort.service.dashboard.runs_folder import RunsFolder, UnknownRunError
from cohort.service.dashboard.runs_view import RunRows
from cohort.service.dashboard.sessions import Sessions
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.dashboard.trial_page import trial_page
from cohort.version import __version__

__all__ = ["build_dashboard"]

_STATIC = (Path(__file__).parent / "static").resolve()
_REPORT = Path(report.__file__).parent.resolve()
_MEDIA = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_MOST_STEP = 1 << 40
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
    pages = _Pages(settings)
    routes = [
        Route("/", pages.index),
        Route("/static/{path:path}", pages.static),
        Route("/api/session", pages.session, methods=["GET", "POST"]),
        Route("/api/runs", _answer(pages.runs)),
        Route("/api/run", _answer(pages.run)),
        Route("/api/run/curves", _answer(pages.curves)),
        Route("/api/run/evaluations", _answer(pages.evaluations)),
        Route("/api/run/rollouts", _answer(pages.rollouts)),
        Route("/api/run/pace", _answer(pages.pace)),
        Route("/api/run/trial", _answer(pages.trial)),
        Route("/api/run/events", pages.events),
        Route("/api/run/preview", _answer(pages.preview), methods=["POST"]),
        Route("/api/run/ask", _answer(pages.ask), methods=["POST"]),
        Route("/api/queues", _answer(pages.queues)),
        Route("/api/queue", _answer(pages.queue)),
        Route("/api/machine", _answer(pages.machine)),
        Route("/api/playground", _answer(pages.models)),
        Route("/api/playground", pages.playground, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(PageGuard, sessions=pages.sessions, host=settings.host)],
        exception_handlers={HTTPException: _http_error},
    )
    app.state.end_streams = pages.ending.set
    return app


class NotAllowedError(CohortError):
    """The server shows runs and changes none."""


def _answer(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that answers what ``handler`` returns as JSON, and its errors with their status and text."""

    async def route(request: Request) -> Response:
        try:
            return _json(await handler(request))
        except NotAllowedError as error:
            return _json({"error": str(error)}, status=403)
        except CohortError as error:
            status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 503)
            return _json({"error": str(error)}, status=status)

    return route


def _json(body: Any, *, status: int = 200) -> Response:
    return Response(dumped(body), status_code=status, media_type="application/json")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": str(error.detail)}, status=error.status_code)


class _Pages:
    """The handlers; what they share are the folder, sessions and one feed for each run that was looked at."""

    def __init__(self, settings: DashboardSettings) -> None:
        self.settings = settings
        self.sessions = Sessions(settings.api_keys)
        self.folder = RunsFolder(settings.root)
        self._feeds: dict[str, RunFeed] = {}
        self._rows = RunRows()
        self.ending = asyncio.Event()

    async def index(self, request: Request) -> Response:
        # relative addresses of the page need the slash at the end of where it is mounted
        if not request.url.path.endswith("/"):
            return RedirectResponse(f"{request.url.path}/")
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        return self._file(str(request.path_params["path"]))

    def _file(self, name: str) -> Response:
        # the palette is the report's: a trial has one colour in both
        folder = _REPORT if name == PALETTE else _STATIC
        # a zero byte is part of no file's name
        path = (folder / name.replace("\0", "_")).resolve()
        media = _MEDIA.get(path.suffix)
        if media is None or not path.is_relative_to(folder) or not path.is_file():
            raise HTTPException(404, "there is no such page")
        # asked again each time, answered from its time stamp: a new version is never mixed with an old one
        return FileResponse(path, media_type=media, headers={"cache-control": "no-cache"})

    async def session(self, request: Request) -> Response:
        """Say who the viewer is; with a key, sign in; with ``leave``, sign out."""
        found = session_of(request.scope)
        if request.method == "POST":
            body = await _body(request)
            if found is not None:
                self.sessions.end(found)
            found = None
            if body.get("leave") is not True and self.sessions.needs_key:
                if not self.sessions.opens(str(body.get("key", ""))):
                    # a person waits this long for a slip, a program that guesses for each guess
                    await asyncio.sleep(0.5)
                    return _json({"error": "this is no key of this server"}, status=401)
                found = self.sessions.begin()
        is_new = found is None
        if found is None and not self.sessions.needs_key:
            found = self.sessions.begin()
        answer = _json(
            {
                # before a key is given there is nothing to keep, or a stranger could fill the server's memory
                "csrf": "" if found is None else found.csrf,
                "is_open": found is not None,
                "needs_key": self.sessions.needs_key,
                "can_control": self.settings.can_control,
                "root": "" if found is None else str(self.folder.root),
                "version": __version__,
            }
        )
        if found is None:
            answer.delete_cookie(COOKIE, path=f"{request.scope.get('root_path', '')}/")
        elif is_new or request.method == "POST":
            path = f"{request.scope.get('root_path', '')}/"
            is_secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, found.number, httponly=True, samesite="strict", secure=is_secure, path=path)
        return answer

    async def runs(self, _: Request) -> Any:
        runs, queues = self.folder.runs(), self.folder.queues()
        rows = await self._rows.rows({name: self._feed(name).followed for name in runs})
        return {"root": str(self.folder.root), "runs": rows, "queues": sorted(queues)}

    async def run(self, request: Request) -> Any:
        return (await self._feed(_run_name(request)).moment()).as_json()

    async def curves(self, request: Request) -> Any:
        followed = self._feed(_run_name(request)).followed
        first, last = _number(request, "first", 1), _number(request, "last", 0)
        trials = _trials(request)

        def read() -> Any:
            with RunReader.open(followed.directory.database) as reader:
                plans = reader.planned_steps()
                stop = min(last or _MOST_STEP, max(plans.values(), default=1))
                num_trials = len(plans if trials is None else trials)
                return train_curves(reader, first=max(1, first), last=stop, num_trials=num_trials, trials=trials)

        return await run_in_threadpool(read)

    async def evaluations(self, request: Request) -> Any:
        followed = self._feed(_run_name(request)).followed

        def read() -> Any:
            with RunReader.open(followed.directory.database) as reader:
                return evaluation_curves(reader, metric=reader.facts().objective_metric)

        return await run_in_threadpool(read)

    async def rollouts(self, request: Request) -> Any:
        followed = self._feed(_run_name(request)).followed
        trials = _trials(request)

        def read() -> Any:
            with RunReader.open(followed.directory.database) as reader, reader.snapshot():
                return rollout_curves(reader, trials=trials)

        return await run_in_threadpool(read)

    async def pace(self, request: Request) -> Any:
        followed = self._feed(_run_name(request)).followed

        def read() -> Any:
            with RunReader.open(followed.directory.database) as reader:
                return pace_curve(reader)

        return await run_in_threadpool(read)

    async def trial(self, request: Request) -> Any:
        followed = self._feed(_run_name(request)).followed
        return await run_in_threadpool(trial_page, followed, _number(request, "trial", -1))

    async def events(self, request: Request) -> Response:
        """Stream what happens in a run; a browser that lost the connection says what it heard last."""
        try:
            feed = self._feed(_run_name(request))
        except UnknownRunError as error:
            return _json({"error": str(error)}, status=404)
        heard = request.headers.get("last-event-id") or request.query_params.get("after", "")
        generation, number, position = (*heard.split(":"), "", "", "")[:3]
        stride = max(1, _number(request, "stride", 1))
        changes = feed.changes(
            generation=generation,
            number=-1 if (found := read_whole(number)) is None else found,
            position=read_whole(position) or 0,
            stride=stride,
            ending=self.ending,
        )

        async def stream() -> AsyncIterator[bytes]:
            yield b"retry: 2000\n\n"
            async for change in changes:
                if change is None:
                    yield b": still here\n\n"
                elif "position" in change:
                    heard_now = f"{generation}:{change['number']}:{change['position']}"
                    yield b"id: %s\ndata: %s\n\n" % (heard_now.encode(), dumped(change))
                else:
                    yield b"data: %s\n\n" % dumped(change)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def preview(self, request: Request) -> Any:
        directory, body = await self._controlled(request)
        if body.get("kind") == "stop-run":
            return await run_in_threadpool(stop_run, directory, is_preview=True)
        return await run_in_threadpool(preview, directory, read_request(body))

    async def ask(self, request: Request) -> Any:
        directory, body = await self._controlled(request)
        if body.get("kind") == "stop-run":
            return await run_in_threadpool(stop_run, directory, is_preview=False)
        return await run_in_threadpool(act, directory, read_request(body))

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
        server, asked = self.settings.models, await _body(request)
        if server is None:
            return _json({"error": "this dashboard has no server of models"}, status=404)
        prompt, is_chat = str(asked.get("prompt", "")), asked.get("chat") is True
        body: dict[str, Any] = {name: asked[name] for name in _OF_A_PROMPT if name in asked}
        body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}

        async def lines() -> AsyncIterator[bytes]:
            async for piece in server.stream(body, is_chat=is_chat):
                yield dumped(piece) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _controlled(self, request: Request) -> tuple[Any, dict[str, Any]]:
        if not self.settings.can_control:
            raise NotAllowedError("this dashboard only shows; start it with --control to change runs")
        return self.folder.run(_run_name(request)), await _body(request)

    def _feed(self, name: str) -> RunFeed:
        directory = self.folder.run(name)
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = RunFeed(FollowedRun(directory), poll_seconds=self.settings.poll_seconds)
        return feed


def _trials(request: Request) -> list[int] | None:
    wanted = request.query_params.get("trials", "")
    return [trial for text in wanted.split(",") if (trial := read_whole(text)) is not None] or None


def _run_name(request: Request) -> str:
    return request.query_params.get("run", ".")


def _number(request: Request, name: str, default: int) -> int:
    found = read_whole(request.query_params.get(name, ""))
    return default if found is None else found


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except ClientDisconnect:
        # the guard ends a body that is too long and has not said so
        raise HTTPException(413, "the body is too large, or its sender has left") from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is no JSON object")
    return body
