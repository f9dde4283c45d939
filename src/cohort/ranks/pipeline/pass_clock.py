"""When the passes of a stage began and ended: by the host's clock on a CPU, by events on a GPU, waiting for neither."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from cohort.scheduling.pipelines.pipeline_schedule import StagePass
from cohort.scheduling.pipelines.simulation import PassTime, PipelineTimes

__all__ = ["PassClock", "joined_times"]


class PassClock:
    """Times the passes of one stage in its last window.

    Stages of one machine share the host's clock, so their times can be compared.
    """

    def __init__(self, device: torch.device, *, stage: int) -> None:
        self._on_gpu, self._stage = device.type == "cuda", stage
        self._marks: list[tuple[StagePass, Any, Any]] = []
        self._began: Any = None
        self._start: Any = None
        self._host_start = 0.0

    def start_window(self) -> None:
        """Forget the window before; the device is idle."""
        self._marks = []
        self._host_start, self._start = time.perf_counter(), self._now()

    def begin(self) -> None:
        """Mark the start of a pass, whose input has arrived."""
        self._began = self._now()

    def end(self, what: StagePass) -> None:
        """Mark the end of the pass that began last."""
        self._marks.append((what, self._began, self._now()))

    def times(self) -> tuple[PassTime, ...]:
        """Return the passes of the window in the order they ran, by the host's clock in seconds; it has ended."""
        return tuple(
            PassTime(stage=self._stage, what=what, begin=self._seconds(begin), end=self._seconds(end))
            for what, begin, end in self._marks
        )

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, mark: Any) -> float:
        if not self._on_gpu:
            return float(mark)
        return self._host_start + float(self._start.elapsed_time(mark)) * 1e-3


def joined_times(of_stages: Sequence[Sequence[PassTime]]) -> PipelineTimes:
    """Return the times of all stages, counted from the first pass."""
    first = min((own[0].begin for own in of_stages if own), default=0.0)
    return PipelineTimes(
        passes=tuple(
            tuple(
                PassTime(stage=each.stage, what=each.what, begin=each.begin - first, end=each.end - first)
                for each in own
            )
            for own in of_stages
        )
    )
