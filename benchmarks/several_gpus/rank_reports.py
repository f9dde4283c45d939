"""What each rank of a measurement did: its seconds, and the passes that it recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cohort.core.rank_work import RankWork
from cohort.ranks.calls import Call
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.cuda_graphs.captured_passes import CapturedPasses

__all__ = ["RankPasses", "ReportPasses", "report_rows"]


@dataclass(frozen=True, kw_only=True)
class RankPasses:
    """Passes of one rank so far; zeros where none is recorded.

    Attributes:
        capture_seconds: For which its device waited for recordings.
        num_replays: Passes that were replays of a recording.
        recorded_rows: Rows of each recording, by kind.
    """

    capture_seconds: float = 0.0
    num_replays: int = 0
    recorded_rows: dict[str, list[int]]

    @classmethod
    def of(cls, executor: object) -> RankPasses:
        """Return those of an executor, also of one that holds a shard of each layer."""
        captured: CapturedPasses | None = executor.captured if isinstance(executor, LocalExecutor) else None
        if captured is None:
            return cls(recorded_rows={})
        sizes = {kind.name.lower(): rows for kind, rows in captured.sizes.items()}
        return cls(capture_seconds=captured.capture_seconds, num_replays=captured.num_replays, recorded_rows=sizes)


@dataclass(frozen=True, kw_only=True)
class ReportPasses(Call):
    """Asks a rank for its passes."""

    verb: str = "report_passes"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def carried_out_by(self, tenant: object) -> RankPasses:
        """Return them."""
        return RankPasses.of(tenant)


def report_rows(
    work: Sequence[RankWork],
    work_before: Sequence[RankWork],
    passes: Sequence[RankPasses],
    passes_before: Sequence[RankPasses],
) -> list[dict[str, Any]]:
    """Return what each rank did between two moments."""
    return [
        {
            **asdict(now.since(then)),
            "capture_seconds": own.capture_seconds - before.capture_seconds,
            "num_replays": own.num_replays - before.num_replays,
            "recorded_rows": own.recorded_rows,
        }
        for now, then, own, before in zip(work, work_before, passes, passes_before, strict=True)
    ]
