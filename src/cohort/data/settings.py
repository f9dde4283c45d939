"""What the user decides about the data: the ``dataset`` section of a task, checked on creation."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place

__all__ = [
    "CANONICAL_COLUMNS",
    "BadRowRule",
    "DatasetSettings",
    "FormatChoice",
    "LongRowRule",
    "template_fields",
]

FormatChoice = Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "preference"]
LongRowRule = Literal["drop", "truncate", "error"]
BadRowRule = Literal["error", "skip"]

CANONICAL_COLUMNS = (
    "messages",
    "conversations",
    "tools",
    "system",
    "instruction",
    "input",
    "output",
    "prompt",
    "completion",
    "text",
    "chosen",
    "rejected",
    "preferred_completion",
    "non_preferred_completion",
)

_SECTION = Place(key=("dataset",))


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Where the rows come from and how they become tokens.

    Attributes:
        train: One file (.jsonl, .json, .csv, .parquet), several, a directory, or a hub id (``org/name`` or
            ``org/name:config``).
        validation: The same, or the share of the training rows to put aside (0 < share < 1).
        format: Layout of the rows; ``auto`` recognises it by the keys.
        columns: Our column name -> the file's column name, e.g. ``{"prompt": "question"}``.
        prompt_template: Text with ``{column}`` fields that replaces the prompt of ``prompt_completion`` and
            ``alpaca`` rows.
        on_long_rows: What happens to rows of more than ``max_length`` tokens.
        on_bad_rows: Whether a malformed row stops the run or is skipped and counted.
        completion_only_loss: True trains on answers only; False trains on every token, whatever a message's weight
            says.
        max_length: Most tokens of a row, special tokens included.
        max_train_samples: At most so many rows are trained on, chosen by seed from the usable ones; None takes all.
        seed: Chooses the validation share, the evaluation rows and the rows of ``max_train_samples``.
        base_directory: What relative paths are relative to; the working directory when None.
        where: The place of this section.

    Raises:
        InputError: a value is out of range, with every such value listed.
    """

    train: str | Path | Sequence[str | Path]
    validation: str | Path | Sequence[str | Path] | float = 0.1
    format: FormatChoice = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    prompt_template: str | None = None
    on_long_rows: LongRowRule = "drop"
    on_bad_rows: BadRowRule = "error"
    completion_only_loss: bool = True
    max_length: int = 1024
    max_train_samples: int | None = None
    seed: int = 0
    base_directory: Path | None = None
    where: Place = _SECTION

    def __post_init__(self) -> None:
        problems = [*self._choice_problems(), *self._range_problems(), *self._column_problems()]
        if problems:
            raise InputError(problems)

    def key(self, *names: str) -> Place:
        """Return the place of a key of this section."""
        return self.where.below(*names)

    def _choice_problems(self) -> list[Problem]:
        problems = []
        for name, choices in (("format", FormatChoice), ("on_long_rows", LongRowRule), ("on_bad_rows", BadRowRule)):
            value, allowed = getattr(self, name), get_args(choices)
            if value not in allowed:
                near = get_close_matches(str(value), allowed, n=1)
                hint = f"Write {name}: {near[0] if near else allowed[0]}."
                problems.append(
                    Problem(where=self.key(name), found=repr(value), allowed=" | ".join(allowed), hint=hint)
                )
        return problems

    def _range_problems(self) -> list[Problem]:
        problems = []
        if isinstance(self.validation, int | float) and (
            isinstance(self.validation, bool) or not 0 < self.validation < 1
        ):
            problems.append(
                Problem(
                    where=self.key("validation"),
                    found=repr(self.validation),
                    allowed="a file, or a share above 0 and below 1",
                    hint="Write a share such as 0.1, or name a validation file.",
                )
            )
        if isinstance(self.max_length, bool) or self.max_length < 2:
            problems.append(
                Problem(
                    where=self.key("max_length"),
                    found=repr(self.max_length),
                    allowed="a whole number of tokens, at least 2",
                    hint="Write max_length: 1024, or what the model's context allows.",
                )
            )
        if self.max_train_samples is not None and (
            isinstance(self.max_train_samples, bool) or self.max_train_samples < 1
        ):
            problems.append(
                Problem(
                    where=self.key("max_train_samples"),
                    found=repr(self.max_train_samples),
                    allowed="a whole number of rows, at least 1, or null for all",
                    hint="Write max_train_samples: 1000, or remove it.",
                )
            )
        return problems

    def _column_problems(self) -> list[Problem]:
        problems = []
        for name in self.columns:
            if name not in CANONICAL_COLUMNS:
                near = get_close_matches(name, CANONICAL_COLUMNS, n=1)
                hint = f"Write {near[0]} instead" if near else "Put our name left and the file's name right"
                problems.append(
                    Problem(
                        where=self.key("columns", name),
                        found=repr(name),
                        allowed=", ".join(CANONICAL_COLUMNS),
                        hint=f"{hint}: columns: {{prompt: question, completion: answer}}.",
                    )
                )
        if self.prompt_template is None:
            return problems
        if self.format not in ("auto", "prompt_completion", "alpaca"):
            problems.append(
                Problem(
                    where=self.key("prompt_template"),
                    found=f"a prompt template with format: {self.format}",
                    allowed="a prompt template with prompt_completion or alpaca rows",
                    hint="Remove prompt_template, or write format: prompt_completion.",
                )
            )
        try:
            template_fields(self.prompt_template)
        except ValueError as error:
            problems.append(
                Problem(
                    where=self.key("prompt_template"),
                    found=f"{self.prompt_template!r} ({error})",
                    allowed="text with {column} fields; a literal brace is written {{ or }}",
                    hint='Write for instance prompt_template: "Question: {question}\\nAnswer:\\n".',
                )
            )
        return problems


def template_fields(template: str) -> tuple[str, ...]:
    """Return the column names a prompt template uses, in order.

    Raises:
        ValueError: braces do not pair up, a field is empty, or it asks for more than a column (``{a.b}``, ``{a!r}``,
            ``{a:>5}``).
    """
    names = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name or spec or conversion or not name.replace("_", "").replace("-", "").replace(" ", "").isalnum():
            raise ValueError(f"the field {{{name}}} is not a plain column name")
        names.append(name)
    return tuple(names)
