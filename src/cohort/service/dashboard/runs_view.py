"""The runs of a folder as a list: where each stands, its best value so far, and a small curve of how it got there."""

from __future__ import annotations

from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.reader import RunReader
from cohort.service.dashboard.followed_run import FollowedRun, RunMoment
from cohort.service.dashboard.plain_json import rounded
from cohort.tuning.decisions import DecisionKind

__all__ = ["run_row"]

_SPARK_POINTS = 48
_FROM_HEADER = (
    "title", "model", "state", "metric", "best", "base_value", "seconds", "seconds_left", "counts", "share_done",
    "cost_tokens", "planned_tokens", "saved_tokens", "device",
)  # fmt: skip


def run_row(name: str, followed: FollowedRun, *, spark: bool = True) -> dict[str, Any]:
    """Return a row of the list; a run that cannot be read has only its ``name`` and an ``error``."""
    try:
        moment = followed.look()
        row = {key: moment.header[key] for key in _FROM_HEADER}
        curve = _best_so_far(followed, moment) if spark else []
    except CohortError as error:
        return {"name": name, "error": str(error)}
    return {"name": name, "updated_at": moment.updated_at, "spark": curve, "num_trials": len(moment.trials), **row}


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
