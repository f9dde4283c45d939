"""What the user decides about the data: the ``dataset`` section of a task, checked on creation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args

from cohort.core.errors import InputError
from cohort.core.setting_fields import (
    Refusal,
    checked,
    choice,
    flag,
    number,
    problems_of,
    setting_fields,
    whole,
)
from cohort.core.source_location import Place
from cohort.core.units import counted
from cohort.data.chat_templates import known_templates
from cohort.data.files.given_rows import GivenRows
from cohort.data.setting_refusals import (
    COLUMNS_ALLOWED,
    VARIABLES_ALLOWED,
    WEIGHTS_ALLOWED,
    chat_template_refusals,
    column_refusals,
    share_refusals,
    template_refusals,
    variable_refusals,
    weight_refusals,
)

__all__ = ["BadRowRule", "DatasetSettings", "FormatChoice", "LongRowRule", "RowReading"]

FormatChoice = Literal[
    "auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "preference", "unpaired_preference", "prompt"
]
LongRowRule = Literal["drop", "truncate", "split", "error"]
TrainedTurns = Literal["all", "last"]


class RowReading(StrEnum):
    """What an objective reads of a row: an answer, two that are compared, one with a label, or the prompt alone."""

    ANSWERS = "answers"
    PAIRS = "pairs"
    LABELS = "labels"
    PROMPTS = "prompts"


BadRowRule = Literal["error", "skip"]


_SECTION = Place(key=("dataset",))


# keys of later versions: a fingerprint of rows must stay the same where a task does not use them
_LATER_KEYS = ("split_overlap", "chat_template", "chat_template_kwargs", "trained_turns", "weights")


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Where the rows come from and how they become tokens.

    Attributes:
        train: One file (.jsonl, .json, .csv, .parquet), several, a directory, or a hub id (``org/name`` or
            ``org/name:config``).
        validation: The same, or the share of the training rows to put aside (0 < share < 1).
        test: The same as ``train``, for rows that only the finished winner is measured on; None for none.
        columns: Our column name -> the file's column name, e.g. ``{"prompt": "question"}``.
        completion_only_loss: False trains on every token, whatever a message's weight says.
        weights: Share of the training rows by entry of ``train``, whatever their sum (see :mod:`cohort.data.mixing`);
            None takes every row once.
        seed: Chooses the validation share, the evaluation rows, the rows of ``max_train_samples`` and of a mix.
        base_directory: What relative paths are relative to; the working directory when None.
        reads: What the task's objective reads of a row.
        given: Rows given from Python, by split; they are read instead of the files that the split names.
        where: The place of this section.

    Raises:
        InputError: a value is out of range, with every such value listed.
    """

    train: str | Path | Sequence[str | Path]
    validation: str | Path | Sequence[str | Path] | float = 0.1
    test: str | Path | Sequence[str | Path] | None = None
    format: FormatChoice = choice(
        "auto", "layout of the rows; auto recognises it by the keys", options=get_args(FormatChoice)
    )
    columns: Mapping[str, str] = checked(
        dict,
        "our column name: the file's column name",
        kind=dict[str, str],
        allowed=COLUMNS_ALLOWED,
        check=column_refusals,
    )
    prompt_template: str | None = checked(
        None,
        "replaces the prompt of prompt_completion and alpaca rows",
        kind=str | None,
        allowed="text with {column} fields",
        check=template_refusals,
    )
    on_long_rows: LongRowRule = choice(
        "drop", "rows of more than max_length tokens; split: text in pieces", options=get_args(LongRowRule)
    )
    on_bad_rows: BadRowRule = choice("error", "malformed rows", options=get_args(BadRowRule))
    completion_only_loss: bool = flag(True, "loss on the answer only")
    max_length: int = whole(1024, "most tokens of a row, special tokens included", minimum=2)
    max_train_samples: int | None = whole(
        None, "most rows to train on, chosen from the usable ones by training.seed", null="for all"
    )
    split_overlap: float = number(
        0.1, "on_long_rows: split: share of max_length that a piece repeats of the one before, untrained", below=0.9
    )
    chat_template: str | None = checked(
        None,
        "replaces the tokenizer's chat template",
        kind=str | None,
        allowed=f"a file, the text of a template, or one of {', '.join(known_templates())}",
        check=chat_template_refusals,
    )
    chat_template_kwargs: Mapping[str, Any] = checked(
        dict,
        "variables that the chat template reads, such as enable_thinking",
        kind=dict[str, Any],
        allowed=VARIABLES_ALLOWED,
        check=variable_refusals,
    )
    trained_turns: TrainedTurns = choice(
        "all", "answers of a conversation that the loss counts", options=get_args(TrainedTurns)
    )
    weights: Sequence[float] | None = checked(
        None,
        "share of the training rows that each entry of train has, by weight; repeated or sampled to fit",
        kind=list[float] | None,
        allowed=f"null, or a list of {WEIGHTS_ALLOWED}",
        check=weight_refusals,
    )
    seed: int = 0
    base_directory: Path | None = None
    reads: RowReading = RowReading.ANSWERS
    given: Mapping[str, GivenRows] = field(default_factory=dict)
    where: Place = _SECTION

    def __post_init__(self) -> None:
        fields = setting_fields(self)
        problems = problems_of({name: getattr(self, name) for name in fields}, fields, where=self.where)
        problems += [refusal.problem(self.where) for refusal in self._refusals()]
        if problems:
            raise InputError(problems)

    def shaping(self) -> dict[str, Any]:
        """Return the settings that rows depend on, without those of later versions that a task does not use."""
        fields = setting_fields(self)
        return {
            name: getattr(self, name)
            for name, found in fields.items()
            if name not in _LATER_KEYS or getattr(self, name) != found.default
        }

    @property
    def train_entries(self) -> tuple[str | Path, ...]:
        """What ``train`` names, one by one."""
        return (self.train,) if isinstance(self.train, str | Path) else tuple(self.train)

    def key(self, *names: str) -> Place:
        return self.where.below(*names)

    def _refusals(self) -> Iterator[Refusal]:
        """Yield what is wrong with keys that have no field of their own, and with keys together."""
        if isinstance(self.validation, int | float):
            yield from (replace(refusal, at=("validation",)) for refusal in share_refusals(self.validation))
        count = len(self.train_entries)
        if isinstance(self.weights, list | tuple) and self.weights and len(self.weights) != count:
            yield Refusal(
                found=f"{counted(len(self.weights), 'weight')} for {counted(count, 'data set')}",
                allowed=WEIGHTS_ALLOWED,
                hint="Write one weight for each entry, or none.",
                at=("weights",),
            )
        if self.prompt_template is not None and self.format not in (
            "auto",
            "prompt_completion",
            "alpaca",
            "prompt",
        ):
            yield Refusal(
                found=f"a prompt template with format: {self.format}",
                allowed="a prompt template with prompt_completion or alpaca rows",
                hint="Remove prompt_template, or write format: prompt_completion.",
                at=("prompt_template",),
            )
        draws = self.reads is RowReading.PROMPTS
        if self.reads is not RowReading.ANSWERS and self.on_long_rows == "split":
            yield Refusal(
                found=f"on_long_rows: split with an objective that {'draws' if draws else 'compares'} answers",
                allowed="drop or error" if draws else "drop, truncate or error",
                hint=f"Write on_long_rows: {'drop' if draws else 'truncate'}.",
                at=("on_long_rows",),
            )
        if draws and self.on_long_rows == "truncate":
            yield Refusal(
                found="on_long_rows: truncate with an objective that draws answers",
                allowed="drop or error: a prompt without its end asks something else",
                hint="Write on_long_rows: drop.",
                at=("on_long_rows",),
            )
        if self.reads is not RowReading.ANSWERS and self.completion_only_loss is False:
            yield Refusal(
                found="completion_only_loss: false with an objective that compares answers",
                allowed="true: the answers alone are compared",
                hint="Remove the key.",
                at=("completion_only_loss",),
            )
        if self.trained_turns == "last" and self.completion_only_loss is False:
            yield Refusal(
                found="trained_turns: last with completion_only_loss: false, which trains every token",
                allowed="trained_turns: last with completion_only_loss: true",
                hint="Remove one of the two keys.",
                at=("trained_turns",),
            )
        if self.split_overlap != setting_fields(self)["split_overlap"].default and self.on_long_rows != "split":
            yield Refusal(
                found=f"split_overlap with on_long_rows: {self.on_long_rows}, which does not read it",
                allowed="split_overlap with on_long_rows: split",
                hint="Remove split_overlap, or write on_long_rows: split.",
                at=("split_overlap",),
            )
