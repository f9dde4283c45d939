"""Rows of a file that a run has not seen, read and tokenised as its own rows were."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.input_rows import find_source, raise_problems, read_rows
from cohort.core.errors import InputError, Problem
from cohort.data.examples import is_conversation
from cohort.data.files.formats import ParsedRow, parse_rows
from cohort.data.preference_rows import tokenise_compared
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.prompt_rows import tokenise_prompts
from cohort.data.settings import DatasetSettings, RowReading
from cohort.data.token_rows import flattened
from cohort.data.tokenise import render_rows, tokenise_rows
from cohort.data.tokenised import TokenisedRows

__all__ = ["HeldOutRows", "read_held_out"]

_WORDS = {
    ProblemKind.TOO_LONG: "longer than dataset.max_length",
    ProblemKind.EMPTY_AFTER_MASKING: "without a trained token",
    ProblemKind.MALFORMED: "malformed",
    ProblemKind.UNREADABLE: "unreadable",
    ProblemKind.TEMPLATE: "refused by the chat template",
}


@dataclass(frozen=True, kw_only=True)
class HeldOutRows:
    """Usable rows of a file.

    Attributes:
        num_read: Rows of the file.
        note: Which were left out or cut, and why; None for none.
        file_hash: SHA-256 of the file.
        settings: What shaped them.
    """

    rows: TokenisedRows
    settings: DatasetSettings
    num_read: int
    note: str | None
    file_hash: str

    @property
    def group_size(self) -> int:
        """Rows of one question: 2 for pairs of answers."""
        return 2 if self.settings.reads is RowReading.PAIRS else 1

    @property
    def num_groups(self) -> int:
        """Its usable rows; a pair of answers is one."""
        return len(self.rows) // self.group_size


def read_held_out(path: Path, *, base: RunBase, tokenizer: Any, context: int) -> HeldOutRows:
    """Return the rows of ``path`` as the run's own settings make them; none is longer than the model's ``context``.

    Raises:
        InputError: rows that the settings do not allow, rows of another format than the run's, or none that is usable.
    """
    source = find_source(path, option="--data")
    raw = read_rows(source, option="--data")
    settings, log = base.task.dataset_settings(), ProblemLog()
    # the run may have had no row as long as its max_length
    settings = replace(settings, max_length=min(settings.max_length, context))
    recorded: Any = base.facts.inputs.data_format
    if recorded is not None:
        # a file of its own might be taken for another format, which would ask other questions
        settings = replace(settings, format=recorded)
    _, parsed = parse_rows(raw, settings=settings, log=log)
    _require_form(parsed, base=base)
    if settings.reads is RowReading.ANSWERS:
        rendered = render_rows(
            parsed,
            tokenizer=tokenizer,
            completion_only_loss=settings.completion_only_loss,
            last_turn_only=settings.trained_turns == "last",
            log=log,
        )
        kept, _ = tokenise_rows(rendered, tokenizer=tokenizer, settings=settings, log=log) if rendered else ([], None)
    elif settings.reads is RowReading.PROMPTS:
        kept, _ = tokenise_prompts(parsed, tokenizer=tokenizer, settings=settings, log=log)
    else:
        kept, _ = tokenise_compared(parsed, tokenizer=tokenizer, settings=settings, log=log)
    raise_problems(_stopping(log, settings=settings))
    if not kept:
        counts = ", ".join(f"{kind.replace('_', ' ')}: {count}" for kind, count in log.counts().items())
        raise InputError(
            Problem(
                where=source.shown,
                found=f"no usable row ({counts or 'no rows at all'})",
                allowed=f"at least one row in the form of the run's rows ({recorded or 'as its task says'})",
                hint="Correct the rows; the run's settings are in its task.yaml.",
            )
        )
    file_hash = hashlib.sha256(source.path.read_bytes()).hexdigest()
    return HeldOutRows(
        rows=flattened(kept, identity=file_hash),
        settings=settings,
        num_read=len(raw),
        note=_note(log),
        file_hash=file_hash,
    )


def _stopping(log: ProblemLog, *, settings: DatasetSettings) -> list[Problem]:
    # the keys of a run stay as they are, so a hint to set one leads nowhere
    bad, long = settings.on_bad_rows == "error", settings.on_long_rows == "error"
    return log.stopping(bad_rows_stop=bad, long_rows_stop=long, can_skip=False)


def _require_form(parsed: list[ParsedRow], *, base: RunBase) -> None:
    """Refuse conversations in a run on text, and text in a run on conversations."""
    was_chat = base.facts.inputs.is_chat
    other = next((row for row in parsed if is_conversation(row.example) is not was_chat), None)
    if was_chat is None or other is None:
        return
    kinds = ("text", "messages") if was_chat else ("messages", "text")
    raise InputError(
        Problem(
            where=other.where,
            found=f"prompt and completion as {kinds[0]}",
            allowed=f"{kinds[1]}, as in the rows of the run",
            hint="Write every row's prompt and completion in the form of the run's rows.",
        )
    )


def _note(log: ProblemLog) -> str | None:
    counts = log.counts()
    parts = [f"{counts[kind]} {words}" for kind, words in _WORDS.items() if counts.get(kind)]
    cut = counts.get(ProblemKind.TRUNCATED)
    notes = ([f"left out: {', '.join(parts)}"] if parts else []) + (
        [f"cut at dataset.max_length: {cut}"] if cut else []
    )
    return "; ".join(notes) or None
