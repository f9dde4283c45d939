"""What loading a data set found: counts, lines and lengths, for the run store, the model card and the terminal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cohort.data.files.reading import InputSource, ParsedDataset
from cohort.data.files.sources import SplitName
from cohort.data.lengths import LengthStatistics, format_histogram
from cohort.data.mixing import MixedDataset
from cohort.data.problems import ProblemLog
from cohort.data.split_input import SplitInput
from cohort.data.tokenised import TokenisedRows

__all__ = ["DataReport", "collect_notes", "split_input"]

_SAMPLES_PER_KIND = 3


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """A data set in numbers.

    Attributes:
        is_chat: Whether the chat template rendered them (see :func:`cohort.data.tokenise.encode_prompt`).
        num_rows_read: Rows of all files, unreadable ones included.
        num_train_rows: Rows trials train on.
        num_usable_train_rows: Rows trials could train on; more than ``num_train_rows`` under ``max_train_samples``.
        num_validation_rows: Rows put aside for validation.
        num_evaluation_rows: Those of them that evaluations look at.
        num_trained_tokens: Training tokens the loss counts, in one epoch.
        counts: Notes by kind (see :class:`cohort.data.problems.ProblemKind`).
        lines: ``file:line`` of every note, by kind.
        samples: The first messages of each kind, in words.
        lengths: Lengths of every row that could be tokenised, before dropping and cutting, of both splits together.
        train_lengths: Lengths of the training rows as they are trained.
        data_hash: SHA-256 over the content of all files (hex).
        tokenizer_hash: SHA-256 over the tokenizer, its special tokens and its chat template (hex).
        train_input: What the training rows were read from.
        validation_input: What the validation rows that evaluations choose from were read from: no file where they are
            a share of the training rows.
        all_validation_input: The same for all validation rows.
        num_test_rows: Rows that the winner is measured on at the end.
        test_input: What they were read from; None where there are none.
        mix: What each data set gives to the training rows; empty where none has a weight.
    """

    format: str
    is_chat: bool
    num_rows_read: int
    num_train_rows: int
    num_usable_train_rows: int
    num_validation_rows: int
    num_evaluation_rows: int
    num_trained_tokens: int
    counts: Mapping[str, int]
    lines: Mapping[str, tuple[str, ...]]
    samples: Mapping[str, tuple[str, ...]]
    lengths: LengthStatistics
    train_lengths: LengthStatistics
    max_length: int
    data_hash: str
    file_hashes: Mapping[str, str]
    tokenizer_hash: str
    train_input: SplitInput
    validation_input: SplitInput
    all_validation_input: SplitInput
    num_test_rows: int = 0
    test_input: SplitInput | None = None
    mix: tuple[MixedDataset, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataReport:
        """Return the report that :meth:`to_json` gave.

        Raises:
            TypeError, KeyError: ``values`` is something else.
        """
        data = dict(values)
        for name in ("lengths", "train_lengths"):
            entry = dict(data[name])
            entry["bin_edges"], entry["bin_counts"] = tuple(entry["bin_edges"]), tuple(entry["bin_counts"])
            data[name] = LengthStatistics(**entry)
        for name in ("train_input", "validation_input", "all_validation_input"):
            data[name] = SplitInput(**data[name])
        data["test_input"] = None if data["test_input"] is None else SplitInput(**data["test_input"])
        data["mix"] = tuple(MixedDataset(**part) for part in data.get("mix", ()))
        for name in ("lines", "samples"):
            data[name] = {kind: tuple(entries) for kind, entries in data[name].items()}
        return cls(**data)

    @property
    def mix_text(self) -> str | None:
        """The rows of each data set in the mix, in words; None where there is none."""
        if not self.mix:
            return None
        return f"{self.num_train_rows} training rows by weight: {'; '.join(map(str, self.mix))}"

    def summary(self) -> str:
        """Return the report in words: rows, what was left out and where, and the length histogram."""
        limited = self.num_train_rows < self.num_usable_train_rows
        of_usable = f" of {self.num_usable_train_rows} usable (max_train_samples)" if limited else ""
        is_part = self.num_evaluation_rows < self.num_validation_rows
        # no row that is trained on is without a token that counts, but those to which answers are drawn
        trained = f"{self.num_trained_tokens} trained tokens" if self.num_trained_tokens else "answers are drawn"
        lines = [
            f"format {self.format}: {self.num_rows_read} rows read, {self.num_train_rows}{of_usable} to train on "
            f"({trained}), {self.num_validation_rows} for validation"
            + (f", at most {self.num_evaluation_rows} of them at a time" if is_part else "")
            + (f", {self.num_test_rows} to test the winner on" if self.num_test_rows else "")
        ]
        for kind, count in self.counts.items():
            shown = ", ".join(self.lines[kind][:5])
            more = f" and {count - 5} more" if count > 5 else ""
            lines.append(f"{kind.replace('_', ' ')}: {count} ({shown}{more})")
        lines.append(format_histogram(self.lengths, max_length=self.max_length))
        return "\n".join(lines)


def collect_notes(log: ProblemLog) -> tuple[dict[str, int], dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return (counts, lines, samples) of a log, by kind."""
    lines: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for entry in log.entries:
        lines.setdefault(entry.kind.value, []).append(str(entry.problem.where))
        if len(samples.setdefault(entry.kind.value, [])) < _SAMPLES_PER_KIND:
            samples[entry.kind.value].append(str(entry.problem))
    return (
        log.counts(),
        {kind: tuple(entries) for kind, entries in lines.items()},
        {kind: tuple(entries) for kind, entries in samples.items()},
    )


def split_input(
    split: SplitName, rows: TokenisedRows, *, sources: Sequence[InputSource], parsed: ParsedDataset
) -> SplitInput:
    """Return what is kept of ``split``, whose used rows are ``rows``.

    Raises:
        OSError: a file that was read is gone.
    """
    own = [entry for entry in sources if entry.split == split]
    sizes = [entry.source.num_bytes() for entry in own]
    return SplitInput(
        num_rows_read=parsed.rows_read[split],
        num_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
        files_hash=hashlib.sha256(json.dumps([entry.digest for entry in own]).encode()).hexdigest(),
        rows_hash=_rows_hash(rows, is_chat=parsed.is_chat),
    )


def _rows_hash(rows: TokenisedRows, *, is_chat: bool) -> str:
    digest = hashlib.sha256(json.dumps([is_chat, rows.prompts, rows.references]).encode())
    for part in (rows.tokens_T, rows.trained_T, rows.offsets):
        digest.update(part.tobytes())
    return digest.hexdigest()
