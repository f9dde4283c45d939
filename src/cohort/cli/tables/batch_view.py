"""Progress of a batch of answers, in one line."""

from __future__ import annotations

from cohort.adapter_files.pace import BatchProgress
from cohort.cli.terminal.progress import View
from cohort.core.units import format_count, format_duration

__all__ = ["BATCH_VIEW"]


def _line(progress: BatchProgress) -> str:
    parts = [f"[{format_duration(progress.elapsed_seconds)}] {progress.phase}"]
    if progress.num_rows and progress.phase == "answering":
        parts.append(f"{progress.num_done} of {progress.num_rows} prompts")
    if progress.tokens_per_second is not None:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if progress.seconds_left:
        parts.append(f"about {format_duration(progress.seconds_left)} left")
    return " | ".join(parts)


BATCH_VIEW: View[BatchProgress] = View(
    line=_line,
    tables=lambda _progress, _width, _height: (),
    phase=lambda progress: progress.phase,
    interval_seconds=10.0,
)
