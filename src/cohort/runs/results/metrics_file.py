"""metrics.jsonl: every step and evaluation, one JSON object a line, with the keys of transformers' ``log_history``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohort.core.durable_files import atomic_file, storage_full_named
from cohort.core.events import Evaluated, StepDone
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.results.results_table import finite_values

__all__ = ["MetricsFile"]


class MetricsFile:
    """Writes metrics.jsonl from the record, in the order of its log; NaN and Inf, which JSON lacks, as null."""

    def __init__(self, path: Path, *, reader: RunReader) -> None:
        """Write nothing yet; call :meth:`write` first."""
        self._path, self._reader = path, reader
        self._position = 0
        # num_tokens adds up over a trial, as TRL's adds up over a run
        self._tokens: dict[int, int] = {}

    def write(self) -> None:
        """Write the whole file again, all of it or nothing.

        Raises:
            StorageFullError: the disk is full; the file is as it was.
        """
        self._position, self._tokens = 0, {}
        with atomic_file(self._path) as partial:
            partial.write_bytes(self._new_lines())

    def append(self) -> None:
        """Append what was recorded since the last call.

        Raises:
            StorageFullError: the disk is full; :meth:`write` makes the file whole again.
        """
        # a user may have moved it away
        if not self._path.exists():
            self.write()
            return
        # whole lines only; should a kill cut the last one, the resume writes the file again
        with storage_full_named(self._path), self._path.open("ab") as stream:
            stream.write(self._new_lines())

    def _new_lines(self) -> bytes:
        entries = self._reader.log.entries(after=self._position)
        if entries:
            self._position = entries[-1].position
        lines = (json.dumps(finite_values(line), allow_nan=False) + "\n" for line in self._lines(entries))
        return "".join(lines).encode()

    def _lines(self, entries: Sequence[LoggedEvent | LoggedDecision]) -> list[dict[str, Any]]:
        lines = []
        for entry in entries:
            if not isinstance(entry, LoggedEvent):
                continue
            event = entry.event
            line: dict[str, Any] = {"trial": event.trial_id, "step": event.step, "seconds": round(entry.seconds, 3)}
            if isinstance(event, StepDone):
                self._tokens[event.trial_id] = self._tokens.get(event.trial_id, 0) + event.num_tokens
                line |= {"loss": event.loss, "grad_norm": event.grad_norm, "learning_rate": event.learning_rate}
                line["num_tokens"] = self._tokens[event.trial_id]
            elif isinstance(event, Evaluated):
                line |= {"eval_loss": event.validation_loss}
                line |= {f"eval_{name}": value for name, value in event.metrics.items()}
                line["eval_num_tokens"] = event.num_tokens
            else:
                line["error"] = event.message
            lines.append(line)
        return lines
