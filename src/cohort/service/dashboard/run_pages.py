"""The routes of pages about one run: its trials, its curves, its events as it goes on, and what a person asks of it.

Which run a name means, and who may see and change it, is what a door says: a folder's, or a service's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cohort.core.errors import CohortError
from cohort.core.input_values.whole_numbers import read_whole
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.service.dashboard.curve_points import evaluation_curves, pace_curve, train_curves
from cohort.service.dashboard.followed_run import FollowedRun
from cohort.service.dashboard.json_answers import answering
from cohort.service.dashboard.page_guard import is_still_open
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.rollout_view import rollout_curves
from cohort.service.dashboard.run_feed import RunFeed
from cohort.service.dashboard.trial_page import trial_page

__all__ = ["RunDoor", "RunFeeds", "RunPages"]

_MOST_STEP = 1 << 40

_Read = TypeVar("_Read")


class RunDoor(Protocol):
    """Says which run a request is about, what its sender gets to know of it, and does what it asks."""

    async def run(self, request: Request) -> RunDirectory:
        """Return the run.

        Raises:
            CohortError: there is none of this name for the sender, or it is not here.
        """
        ...

    async def facts(self, request: Request) -> Mapping[str, Any]:
        """Return what the page of a run shows that is not in its record: ``may_change`` at least."""
        ...

    def shown(self, view: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what viewers see of a part of a page."""
        ...

    def words(self, error: CohortError | str) -> str:
        """Return what viewers are told of an error."""
        ...

    async def preview(self, request: Request) -> Any:
        """Say what something that is asked would do; nothing is done."""
        ...

    async def ask(self, request: Request) -> Any:
        """Do what is asked."""
        ...


class RunFeeds:
    """One feed for each run that was looked at, for all its viewers. Use it from one event loop."""

    def __init__(self, *, poll_seconds: float, most: int | None = None) -> None:
        """Begin without any.

        Args:
            poll_seconds: The shortest time between two looks at a run.
            most: Feeds that are kept, each with the trials of its run; a dropped one is read again for its next
                viewer. None keeps all.
        """
        self._poll_seconds, self._most = poll_seconds, most
        self._feeds: OrderedDict[str, RunFeed] = OrderedDict()

    def of(self, directory: RunDirectory) -> RunFeed:
        key = str(directory.root)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = RunFeed(FollowedRun(directory), poll_seconds=self._poll_seconds)
        self._feeds.move_to_end(key)
        while self._most is not None and len(self._feeds) > self._most:
            self._feeds.popitem(last=False)
        return feed


class RunPages:
    """The handlers.

    Attributes:
        ending: Set when the server ends: streams of events go on as long as the viewer stays.
    """

    def __init__(self, door: RunDoor, feeds: RunFeeds) -> None:
        self._door, self._feeds = door, feeds
        self.ending = asyncio.Event()

    def routes(self, statuses: Mapping[type[Exception], int]) -> list[Route]:
        """Return the routes; an error is answered with the status of its kind."""
        answer = answering(statuses, words=self._door.words)
        return [
            Route("/api/run", answer(self.run)),
            Route("/api/run/curves", answer(self.curves)),
            Route("/api/run/evaluations", answer(self.evaluations)),
            Route("/api/run/rollouts", answer(self.rollouts)),
            Route("/api/run/pace", answer(self.pace)),
            Route("/api/run/trial", answer(self.trial)),
            Route("/api/run/events", answer(self.events)),
            Route("/api/run/preview", answer(self._door.preview), methods=["POST"]),
            Route("/api/run/ask", answer(self._door.ask), methods=["POST"]),
        ]

    async def run(self, request: Request) -> Any:
        moment = await (await self._feed(request)).moment()
        return {**self._door.shown(moment.as_json()), **await self._door.facts(request)}

    async def curves(self, request: Request) -> Any:
        first, last = _number(request, "first", 1), _number(request, "last", 0)
        trials = _trials(request)

        def read(reader: RunReader) -> Any:
            plans = reader.planned_steps()
            stop = min(last or _MOST_STEP, max(plans.values(), default=1))
            num_trials = len(plans if trials is None else trials)
            return train_curves(reader, first=max(1, first), last=stop, num_trials=num_trials, trials=trials)

        return await self._read(request, read)

    async def evaluations(self, request: Request) -> Any:
        return await self._read(
            request, lambda reader: evaluation_curves(reader, metric=reader.facts().objective_metric)
        )

    async def rollouts(self, request: Request) -> Any:
        trials = _trials(request)

        def read(reader: RunReader) -> Any:
            with reader.snapshot():
                return rollout_curves(reader, trials=trials)

        return await self._read(request, read)

    async def pace(self, request: Request) -> Any:
        return await self._read(request, pace_curve)

    async def trial(self, request: Request) -> Any:
        followed = (await self._feed(request)).followed
        return self._door.shown(await run_in_threadpool(trial_page, followed, _number(request, "trial", -1)))

    async def events(self, request: Request) -> Response:
        """Stream what happens in a run; a browser that lost the connection says what it heard last."""
        feed = await self._feed(request)
        heard = request.headers.get("last-event-id") or request.query_params.get("after", "")
        generation, number, position = (*heard.split(":"), "", "", "")[:3]
        changes = feed.changes(
            generation=generation,
            number=-1 if (found := read_whole(number)) is None else found,
            position=read_whole(position) or 0,
            stride=max(1, _number(request, "stride", 1)),
            ending=self.ending,
            is_allowed=lambda: is_still_open(request.scope),
        )

        async def stream() -> AsyncIterator[bytes]:
            yield b"retry: 2000\n\n"
            async for change in changes:
                if change is None:
                    yield b": still here\n\n"
                elif "position" in change:
                    heard_now = f"{generation}:{change['number']}:{change['position']}"
                    told = {**change, "header": self._door.shown(change["header"])}
                    yield b"id: %s\ndata: %s\n\n" % (heard_now.encode(), dumped(told))
                elif "error" in change:
                    yield b"data: %s\n\n" % dumped({"error": self._door.words(change["error"])})
                else:
                    yield b"data: %s\n\n" % dumped(change)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _feed(self, request: Request) -> RunFeed:
        return self._feeds.of(await self._door.run(request))

    async def _read(self, request: Request, read: Callable[[RunReader], _Read]) -> _Read:
        directory = await self._door.run(request)

        def opened() -> _Read:
            with RunReader.open(directory.database) as reader:
                return read(reader)

        return await run_in_threadpool(opened)


def _trials(request: Request) -> list[int] | None:
    wanted = request.query_params.get("trials", "")
    return [trial for text in wanted.split(",") if (trial := read_whole(text)) is not None] or None


def _number(request: Request, name: str, default: int) -> int:
    found = read_whole(request.query_params.get(name, ""))
    return default if found is None else found
