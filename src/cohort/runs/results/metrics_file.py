"""metrics.jsonl: every step and evaluation, one JSON object a line, with the keys of transformers' ``log_history``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cohort.core.durable_files import atomic_file, storage_full_named
from cohort.core.events import Evaluated, StepDone
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.results.results_table import finite_values

__all__ = ["MetricsFile", "metric_records"]


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
        # it can be made again from the record, so a run does not wait for the disk
        with atomic_file(self._path, is_flushed=False) as partial:
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
        records = metric_records(entries, tokens=self._tokens)
        return "".join(json.dumps(finite_values(record), allow_nan=False) + "\n" for record in records).encode()


def metric_records(
    entries: Sequence[LoggedEvent | LoggedDecision], *, tokens: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield a record for every step, evaluation and error, in the order of the log.

    Args:
        tokens: Tokens of each trial before ``entries``; those of its steps are added.
    """
    for entry in entries:
        if not isinstance(entry, LoggedEvent):
            continue
        event = entry.event
        record: dict[str, Any] = {"trial": event.trial_id, "step": event.step, "seconds": round(entry.seconds, 3)}
        if isinstance(event, StepDone):
            tokens[event.trial_id] = tokens.get(event.trial_id, 0) + event.num_tokens
            record |= {"loss": event.loss, "grad_norm": event.grad_norm, "learning_rate": event.learning_rate}
            record["num_tokens"] = tokens[event.trial_id]
        elif isinstance(event, Evaluated):
            record |= {"eval_loss": event.validation_loss}
            record |= {f"eval_{name}": value for name, value in event.metrics.items()}
            record["eval_num_tokens"] = event.num_tokens
        else:
            record["error"] = event.message
        yield record
