"""What happened in a run since a viewer last heard of it: one look at the run serves all that watch it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.reader import RunReader
from cohort.service.dashboard.followed_run import FollowedRun, RunMoment
from cohort.service.dashboard.plain_json import plain, rounded

__all__ = ["RunFeed"]

# a look may take this share of a core: a run of a million steps is looked at less often than one of a thousand
_MOST_SHARE = 0.05
# what has to be said after a longer pause is more than a page that begins again has to load
_MOST_STEPS = 50_000
_KEEP_ALIVE_SECONDS = 15.0


class RunFeed:
    """Tells viewers what changed in one run. Use it from one event loop."""

    def __init__(self, followed: FollowedRun, *, poll_seconds: float) -> None:
        self.followed = followed
        self._poll_seconds = poll_seconds
        self._looked_at = 0.0
        self._wait = poll_seconds
        self._turn = asyncio.Lock()

    async def moment(self) -> RunMoment:
        """Return the run as it was less than one interval ago.

        Raises:
            CohortError: the run cannot be read.
        """
        async with self._turn:
            if self.followed.last is None or time.monotonic() - self._looked_at >= self._wait:
                began = time.monotonic()
                moment = await asyncio.to_thread(self.followed.look)
                self._looked_at = time.monotonic()
                self._wait = max(self._poll_seconds, (self._looked_at - began) / _MOST_SHARE)
                return moment
            return self.followed.last

    async def changes(
        self,
        *,
        generation: str,
        number: int,
        position: int,
        stride: int,
        ending: asyncio.Event,
        is_allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncIterator[dict[str, Any] | None]:
        """Yield what changed since ``position``, again and again; None now and then, so that a lost viewer is noticed.

        Args:
            generation: Of the record that the viewer holds; with another one it has to load everything again.
            number: Of the moment that the viewer holds.
            stride: The viewer draws every n-th step.
            ending: Once it is set, the iterator ends.
            is_allowed: Called before each look; where it returns False the page loads again, and that is refused. None
                allows all.
        """
        known: RunMoment | None = None
        said_at = time.monotonic()
        while True:
            if is_allowed is not None and not await is_allowed():
                yield {"reload": True}
                return
            try:
                moment = await self.moment()
            except CohortError as error:
                yield {"error": str(error)}
                return
            if moment.generation != generation:
                yield {"reload": True}
                return
            if known is None or moment is not known:
                if moment.number != number:
                    change = await asyncio.to_thread(self._change, known, moment, position, stride)
                    yield change
                    said_at = time.monotonic()
                    if "reload" in change:
                        return
                known, number, position = moment, moment.number, moment.position
            if time.monotonic() - said_at > _KEEP_ALIVE_SECONDS:
                yield None
                said_at = time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), self._wait)
                return

    def _change(self, known: RunMoment | None, moment: RunMoment, position: int, stride: int) -> dict[str, Any]:
        """Return what differs between two moments; without the first, all that may differ after ``position``."""
        steps, evaluations = [], []
        with RunReader.open(self.followed.directory.database) as reader:
            metric = reader.facts().objective_metric
            for at, _, trial_id, step, loss, _ in reader.log.steps_after(position):
                if at <= moment.position and (step % stride == 0 or step == 1):
                    steps.append([trial_id, step, rounded(loss, 5)])
                if len(steps) > _MOST_STEPS:
                    return {"reload": True}
            for record in reader.log.evaluations_after(position):
                if record.position <= moment.position:
                    value = metric.read(record)
                    evaluations.append(
                        [record.trial_id, record.step, rounded(record.validation_loss, 5), rounded(value, 5)]
                    )
        before = {} if known is None else known.trials
        stays_before = [] if known is None else known.stays
        return {
            "number": moment.number,
            "position": moment.position,
            "header": {**moment.header, "updated_at": moment.updated_at},
            "outcomes": moment.outcomes,
            "trials": [row for trial_id, row in moment.trials.items() if before.get(trial_id) != row],
            "steps": steps,
            "evaluations": plain(evaluations),
            "stays": [
                [place, stay]
                for place, stay in enumerate(moment.stays)
                if place >= len(stays_before) or stays_before[place] != stay
            ],
        }
