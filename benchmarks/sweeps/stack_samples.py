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

__all__ = ["StackSamples"]

# threads that wait for work are everywhere; what they wait in says so
IDLE = ("threading:wait", "thread:_worker", "queue:get", "selectors:select", "stack_samples:run")


class StackSamples(threading.Thread):
    """Samples stacks until :meth:`end`; :meth:`write` gives them by window, most frequent first."""

    def __init__(self, *, interval: float = 0.01, window: float = 3.0, depth: int = 40) -> None:
        """Sample every ``interval`` seconds, count by windows of ``window`` seconds, keep ``depth`` inner frames."""
        super().__init__(daemon=True, name="stack-samples")
        self._interval, self._window, self._depth = interval, window, depth
        self._ended = threading.Event()
        self._began = time.perf_counter()
        self._counts: dict[int, Counter[tuple[str, str]]] = {}
        self._samples: Counter[int] = Counter()

    def run(self) -> None:
        while not self._ended.wait(self._interval):
            window = int((time.perf_counter() - self._began) / self._window)
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self._samples[window] += 1
            counts = self._counts.setdefault(window, Counter())
            for ident, frame in sys._current_frames().items():
                name = names.get(ident, "?")
                if name != self.name:
                    counts[name, self._stack(frame)] += 1

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()

    def write(self, path: Path) -> None:
        """Write one line for each stack: seconds since the start, share of the window's samples, thread, stack."""
        lines = []
        for window, counts in sorted(self._counts.items()):
            for (thread, stack), count in counts.most_common():
                share = count / self._samples[window]
                innermost = stack.rsplit(";", 1)[-1]
                if share >= 0.004 and not (thread != "MainThread" and innermost.startswith(IDLE)):
                    lines.append(f"{window * self._window:7.1f} {share:6.3f} {thread} {stack}")
        path.write_text("\n".join(lines) + "\n")

    def _stack(self, frame: FrameType | None) -> str:
        frames: list[str] = []
        while frame is not None and len(frames) < self._depth:
            frames.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return ";".join(reversed(frames))
