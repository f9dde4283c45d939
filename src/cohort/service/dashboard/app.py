"""The routes of the pages: static files, JSON about runs, events of a run that goes on, and what a person asks for."""

from __future__ import annotations

import asyncio
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
from cohort.core.input_values.whole_numbers import read_whole
from cohort.runs.reader import RunReader
from cohort.service.dashboard.controls import NotRunningError, act, preview, read_request, stop_run
from cohort.service.dashboard.curve_points import evaluation_curves, pace_curve, train_curves
from cohort.service.dashboard.followed_run import FollowedRun
from cohort.service.dashboard.json_answers import NotAllowedError, answering, http_error, json_answer, json_body
from cohort.service.dashboard.machine_page import machine_page
from cohort.service.dashboard.model_server import NoModelServerError
from cohort.service.dashboard.page_frame import PageFrame
from cohort.service.dashboard.page_guard import PageGuard
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.queue_page import queue_page
from cohort.service.dashboard.rollout_view import rollout_curves
from cohort.service.dashboard.run_feed import RunFeed
from cohort.service.dashboard.runs_folder import RunsFolder, UnknownRunError
from cohort.service.dashboard.runs_view import RunRows
from cohort.service.dashboard.sessions import Sessions
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.dashboard.trial_page import trial_page

__all__ = ["build_dashboard"]

_PAGES = ("runs", "compare", "playground", "queue", "system")
_KEY_HINT = "the value of --api-key or COHORT_API_KEY that it was started with"
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
    pages, sessions = _Pages(settings), Sessions(settings.api_keys)
    frame = PageFrame(sessions, pages=_PAGES, key_hint=_KEY_HINT, facts=pages.session_facts)
    answer = answering(_STATUS_OF)
    routes = [
        *frame.routes(),
        Route("/api/runs", answer(pages.runs)),
        Route("/api/run", answer(pages.run)),
        Route("/api/run/curves", answer(pages.curves)),
        Route("/api/run/evaluations", answer(pages.evaluations)),
        Route("/api/run/rollouts", answer(pages.rollouts)),
        Route("/api/run/pace", answer(pages.pace)),
        Route("/api/run/trial", answer(pages.trial)),
        Route("/api/run/events", pages.events),
        Route("/api/run/preview", answer(pages.preview), methods=["POST"]),
        Route("/api/run/ask", answer(pages.ask), methods=["POST"]),
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
    app.state.end_streams = pages.ending.set
    return app


class _Pages:
    """The handlers; what they share are the folder and one feed for each run that was looked at."""

    def __init__(self, settings: DashboardSettings) -> None:
        self.settings = settings
        self.folder = RunsFolder(settings.root)
        self._feeds: dict[str, RunFeed] = {}
        self._rows = RunRows()
        self.ending = asyncio.Event()

    def session_facts(self) -> dict[str, Any]:
        """Return what a page gets once it is signed in."""
        price = self.settings.gpu_hour
        facts = {"can_control": self.settings.can_control, "root": str(self.folder.root)}
        return {**facts, "gpu_hour": None if price is None else price.as_json()}

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
            return json_answer({"error": str(error)}, status=404)
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

    async def _controlled(self, request: Request) -> tuple[Any, dict[str, Any]]:
        if not self.settings.can_control:
            raise NotAllowedError("this dashboard only shows; start it with --control to change runs")
        return self.folder.run(_run_name(request)), await json_body(request)

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
