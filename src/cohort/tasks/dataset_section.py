"""The ``dataset`` section of a task file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, model_validator

from cohort.data.settings import CANONICAL_COLUMNS, BadRowRule, FormatChoice, LongRowRule, template_fields
from cohort.tasks.fields import Section, Whole, setting
from cohort.tasks.refusal import Refusal, refuse

__all__ = ["DatasetSection"]

_FILES_ALLOWED = "a file, a list of files, a directory or a hub id"


def _files(value: object) -> object:
    entries = value if isinstance(value, list | tuple) else [value]
    bad = [
        Refusal(
            found=repr(entry),
            allowed=_FILES_ALLOWED,
            hint="Write a path such as data/train.jsonl.",
            at=(index,) if isinstance(value, list) else (),
        )
        for index, entry in enumerate(entries)
        if not isinstance(entry, str) or not entry.strip()
    ]
    if not entries:
        bad = [Refusal(found="an empty list", allowed=_FILES_ALLOWED, hint="Name at least one file.")]
    if bad:
        refuse(*bad)
    return tuple(entries)


def _files_or_share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _files(value)
    if not 0 < value < 1:
        allowed = "a file, or a share above 0 and below 1"
        refuse(
            Refusal(found=repr(value), allowed=allowed, hint="Write a share such as 0.1, or name a validation file.")
        )
    return float(value)


def _plain_files(value: tuple[str, ...] | float) -> object:
    if isinstance(value, float):
        return value
    return value[0] if len(value) == 1 else list(value)


def _columns(value: object) -> object:
    if not isinstance(value, dict):
        return value
    bad = [
        Refusal(
            found=f"the column {name!r}",
            allowed=", ".join(CANONICAL_COLUMNS),
            hint="Put our name left and the file's name right: {prompt: question, completion: answer}.",
            at=(name,),
        )
        for name in value
        if name not in CANONICAL_COLUMNS
    ]
    if bad:
        refuse(*bad)
    return value


def _template(value: object) -> object:
    if isinstance(value, str):
        try:
            template_fields(value)
        except ValueError as error:
            refuse(
                Refusal(
                    found=f"{value!r} ({error})",
                    allowed="text with {column} fields; a literal brace is written {{ or }}",
                    hint='Write for instance "Question: {question}\\nAnswer:\\n".',
                )
            )
    return value


_FILES_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
Files = Annotated[
    tuple[str, ...], BeforeValidator(_files), PlainSerializer(_plain_files), WithJsonSchema(_FILES_SCHEMA)
]
FilesOrShare = Annotated[
    tuple[str, ...] | float,
    BeforeValidator(_files_or_share),
    PlainSerializer(_plain_files),
    WithJsonSchema({"anyOf": [*_FILES_SCHEMA["anyOf"], {"type": "number", "exclusiveMinimum": 0, "maximum": 1}]}),
]


class DatasetSection(Section):
    """Where the rows come from and how they become tokens."""

    train: Files = setting(allowed=_FILES_ALLOWED, description="training rows")
    validation: FilesOrShare = setting(
        0.1,
        allowed="a file, or a share above 0 and below 1",
        description="validation rows, or the share of the training rows to put aside (seeded, disjoint)",
    )
    format: FormatChoice = setting(
        "auto",
        allowed="auto | messages | sharegpt | alpaca | prompt_completion | text | preference",
        description="layout of the rows; auto recognises it by the keys",
    )
    columns: Annotated[dict[str, str], BeforeValidator(_columns)] = setting(
        {},
        allowed="a mapping such as {prompt: question, completion: answer}",
        description="our column name: the file's column name",
    )
    prompt_template: Annotated[str | None, BeforeValidator(_template)] = setting(
        None,
        allowed="text with {column} fields",
        description="replaces the prompt of prompt_completion and alpaca rows",
    )
    on_long_rows: LongRowRule = setting(
        "drop", allowed="drop | truncate | error", description="rows of more than max_length tokens"
    )
    on_bad_rows: BadRowRule = setting("error", allowed="error | skip", description="malformed rows")
    completion_only_loss: bool = setting(True, allowed="true | false", description="loss on the answer only")
    max_length: Whole = setting(
        1024, ge=2, allowed="a whole number of at least 2", description="most tokens of a row, special tokens included"
    )
    max_train_samples: Whole | None = setting(
        None,
        ge=1,
        allowed="a whole number of at least 1, or null for all",
        description="train on at most so many rows, chosen by training.seed from the usable ones",
    )

    @model_validator(mode="after")
    def _template_fits_the_format(self) -> DatasetSection:
        if self.prompt_template is not None and self.format not in ("auto", "prompt_completion", "alpaca"):
            refuse(
                Refusal(
                    found=f"a prompt template with format: {self.format}",
                    allowed="a prompt template with prompt_completion or alpaca rows",
                    hint="Remove prompt_template, or write format: prompt_completion.",
                    at=("prompt_template",),
                )
            )
        return self
