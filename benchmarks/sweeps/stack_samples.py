"""Where are a process's threads? Their Python stacks, sampled while a sweep runs.

A thread looks at all others every few milliseconds. It needs the interpreter's lock to do so, so code that holds the
lock (a capture, a loop in Python) is seen as often as code that lets it go, a little late.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TextIO

__all__ = ["StackSamples"]

# threads that wait for work are everywhere; what they wait in says so
IDLE = ("threading:wait", "thread:_worker", "queue:get", "selectors:select", "stack_samples:run")
# of a window's samples; rarer stacks are left out
LEAST_SHARE = 0.004


class StackSamples(threading.Thread):
    """Samples stacks until :meth:`end`, and writes them by window, most frequent first."""

    def __init__(self, path: Path, *, interval: float = 0.02, window: float = 3.0, depth: int = 40) -> None:
        """Write to ``path``, window by window, so that a process that is killed leaves those before.

        Args:
            path: Gets a line for each stack: seconds since the start, share of the window's samples, thread, stack.
            interval: Seconds between samples.
            window: Seconds of a window.
            depth: Inner frames that are kept.
        """
        super().__init__(daemon=True, name="stack-samples")
        self._path, self._interval, self._window, self._depth = path, interval, window, depth
        self._ended = threading.Event()
        self._began = time.perf_counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._samples = 0

    def run(self) -> None:
        at = 0
        with self._path.open("w") as file:
            while not self._ended.wait(self._interval):
                reached = int((time.perf_counter() - self._began) / self._window)
                if reached > at:
                    self._write(file, at)
                    at = reached
                self._sample()
            self._write(file, at)

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()

    def _sample(self) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        self._samples += 1
        for ident, frame in sys._current_frames().items():
            name = names.get(ident, "?")
            if name != self.name:
                self._counts[name, self._stack(frame)] += 1

    def _write(self, file: TextIO, window: int) -> None:
        for (thread, stack), count in self._counts.most_common():
            share = count / self._samples
            innermost = stack.rsplit(";", 1)[-1]
            if share >= LEAST_SHARE and not (thread != "MainThread" and innermost.startswith(IDLE)):
                file.write(f"{window * self._window:7.1f} {share:6.3f} {thread} {stack}\n")
        file.flush()
        self._counts.clear()
        self._samples = 0

    def _stack(self, frame: FrameType | None) -> str:
        frames: list[str] = []
        while frame is not None and len(frames) < self._depth:
            frames.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return ";".join(reversed(frames))
