"""The runs of a folder as a list: where each stands, its best value so far, and a small curve of how it got there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.reader import RunReader
from cohort.service.dashboard.followed_run import FollowedRun, RunMoment
from cohort.service.dashboard.plain_json import rounded
from cohort.tuning.decisions import DecisionKind

__all__ = ["RunRows"]

_SPARK_POINTS = 48
# a run of a million steps is read for the first time in a second or two
_PATIENCE_SECONDS = 0.7
_FROM_HEADER = (
    "title", "model", "state", "metric", "best", "base_value", "seconds", "seconds_left", "counts", "share_done",
    "cost_tokens", "planned_tokens", "saved_tokens", "device", "cost_tokens_left", "num_devices",
)  # fmt: skip


class RunRows:
    """The rows of the list, each made again only where its run has gone on. Use it from one event loop."""

    def __init__(self, *, most: int | None = None) -> None:
        """Begin without any. Between calls at most ``most`` rows are remembered (None: all)."""
        self._most = most
        self._known: dict[str, tuple[RunMoment, dict[str, Any]]] = {}
        self._reading: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def rows(self, runs: Mapping[str, FollowedRun]) -> list[dict[str, Any]]:
        """Return a row for each run. One that cannot be read has only its ``name`` and an ``error``; one that takes
        long, ``is_reading``: it is there at a later call, and the others do not wait for it.
        """
        for name, followed in runs.items():
            if name not in self._reading:
                self._reading[name] = asyncio.ensure_future(asyncio.to_thread(self._row, name, followed))
        reading = {name: self._reading[name] for name in runs}
        if reading:
            await asyncio.wait(reading.values(), timeout=_PATIENCE_SECONDS)
        rows = []
        for name, task in reading.items():
            # another viewer of the same run may have taken it out, or begun to read again
            if task.done() and self._reading.get(name) is task:
                del self._reading[name]
            rows.append(task.result() if task.done() else {"name": name, "is_reading": True})
        # rows are added in threads meanwhile
        excess = 0 if self._most is None else len(self._known) - self._most
        for name in list(self._known)[: max(0, excess)]:
            self._known.pop(name, None)
        return rows

    def _row(self, name: str, followed: FollowedRun) -> dict[str, Any]:
        try:
            moment = followed.look()
            known = self._known.get(name)
            if known is not None and known[0] is moment:
                return known[1]
            row = {key: moment.header[key] for key in _FROM_HEADER}
            row |= {"name": name, "updated_at": moment.updated_at, "num_trials": len(moment.trials)}
            row["spark"] = _best_so_far(followed, moment)
        except CohortError as error:
            return {"name": name, "error": str(error)}
        self._known[name] = (moment, row)
        return row


def _best_so_far(followed: FollowedRun, moment: RunMoment) -> list[list[float | None]]:
    """Return (run time in seconds, best value of any trial so far), thinned; its last point is the present."""
    metric = moment.header["metric"]
    sign = -1.0 if metric["maximize"] else 1.0
    points: list[list[float | None]] = []
    best: float | None = None
    with RunReader.open(followed.directory.database) as reader:
        for entry in reader.log.decisions():
            if entry.decision.kind is not DecisionKind.NEW_BEST:
                continue
            value = entry.decision.numbers.get(metric["name"])
            if value is None or (best is not None and sign * value >= sign * best):
                continue
            best = value
            points.append([rounded(entry.seconds), rounded(value)])
    if best is not None:
        points.append([rounded(float(moment.header["seconds"])), rounded(best)])
    every = -(-len(points) // _SPARK_POINTS)
    return points if every <= 1 else [*points[::every], points[-1]]
