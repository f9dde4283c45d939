"""What a run shows when it is called from Python: lines for the standard library's logging, and a progress bar."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cohort.engine.train.watching.progress import ProgressWatcher, RunProgress
from cohort.runs.records import TrialRecord

__all__ = ["LoggingWatcher", "ProgressBar", "is_interactive", "watching"]

_LOGGER = "cohort"
_WARNING = "warning: "


def run_logger() -> logging.Logger:
    """Return the logger ``cohort``, which shows nothing until the caller's program configures logging."""
    logger = logging.getLogger(_LOGGER)
    if not logger.handlers:
        # without any handler Python would print warnings to stderr
        logger.addHandler(logging.NullHandler())
    return logger


class LoggingWatcher:
    """Logs notes and phases to ``cohort``: INFO, or WARNING for what is one."""

    def __init__(self, name: str = "") -> None:
        """Log lines that begin with ``name``, where several tasks run."""
        self._logger, self._prefix, self._phase = run_logger(), f"{name}: " if name else "", ""

    def update(self, progress: RunProgress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._logger.info("%s%s", self._prefix, progress.phase)

    def note(self, text: str) -> None:
        level = logging.WARNING if text.startswith(_WARNING) else logging.INFO
        self._logger.log(level, "%s%s", self._prefix, text.removeprefix(_WARNING))


class ProgressBar:
    """A bar over the optimizer steps of all trials: a widget in notebooks that have widgets, else one line of text.

    Steps that a trial will not do because it ended early are taken off the total.
    """

    def __init__(self, name: str = "", *, stream: Any = None) -> None:
        """Show nothing yet; ``stream`` is stderr when None."""
        self._name, self._stream = name, stream
        self._bar: Any = None

    def update(self, progress: RunProgress) -> None:
        if self._bar is None:
            self._bar = self._open()
        bar = self._bar
        if progress.trials:
            bar.total = sum(_last_step(trial) for trial in progress.trials)
            bar.n = sum(trial.steps_done for trial in progress.trials)
        bar.set_description_str(": ".join(part for part in (self._name, progress.phase) if part), refresh=False)
        if (best := progress.best) is not None:
            bar.set_postfix_str(
                f"best {progress.metric_label} {best.best_value:.4g}, trial {best.trial_id}", refresh=False
            )
        bar.refresh()

    def note(self, text: str) -> None: ...

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def _open(self) -> Any:
        # here, so that a run without a bar does not load widgets; .auto chooses them only where they work
        from tqdm import TqdmWarning

        with warnings.catch_warnings():
            # a notebook without widgets gets the line of text, which needs no warning
            warnings.simplefilter("ignore", TqdmWarning)
            from tqdm.auto import tqdm
        return tqdm(total=1, unit="step", file=self._stream, dynamic_ncols=True)


def _last_step(trial: TrialRecord) -> int:
    return trial.steps_done if trial.status.is_final else trial.planned_steps


class _Several:
    def __init__(self, watchers: Sequence[ProgressWatcher]) -> None:
        self._watchers = watchers

    def update(self, progress: RunProgress) -> None:
        for watcher in self._watchers:
            watcher.update(progress)

    def note(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.note(text)


def is_interactive() -> bool:
    """Return whether a person looks on: in a notebook, or at a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # the kernel of a notebook, whose stderr is no terminal
    return (shell is not None and hasattr(shell, "kernel")) or sys.stderr.isatty()


@contextmanager
def watching(
    *, progress: bool | None, name: str = "", watcher: ProgressWatcher | None = None
) -> Iterator[ProgressWatcher]:
    """Yield a watcher that logs, shows a bar and passes everything on.

    Args:
        progress: Whether to show a bar; None: where a person looks on.
        name: The task's, where there are several.
        watcher: The caller's own.
    """
    bar = ProgressBar(name) if progress or (progress is None and watcher is None and is_interactive()) else None
    watchers: list[ProgressWatcher | None] = [LoggingWatcher(name), bar, watcher]
    try:
        yield _Several([entry for entry in watchers if entry is not None])
    finally:
        if bar is not None:
            bar.close()
