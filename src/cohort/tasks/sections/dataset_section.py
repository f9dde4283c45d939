"""The ``dataset`` section of a task file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, model_validator

from cohort.core.errors import InputError
from cohort.core.setting_fields import MOST_NUMBER, Refusal, setting_fields
from cohort.data.setting_refusals import SHARE_ALLOWED, quoted_share, share_refusals
from cohort.data.settings import DatasetSettings
from cohort.tasks.fields import refusal_of, refuse, section_with, setting

__all__ = ["DatasetSection"]

_FILES_ALLOWED = "a file, a list of files, a directory or a hub id"
_FILES_HINT = "Write a path such as data/train.jsonl."


def _files(value: object) -> object:
    # a single file is the usual case, so it needs no list
    entries = value if isinstance(value, list | tuple) else [value]
    bad = [
        Refusal(
            found=repr(entry),
            allowed=_FILES_ALLOWED,
            # train has had its weights taken off (weighted_files.py)
            hint="Write the path alone: only training rows have weights." if isinstance(entry, dict) else _FILES_HINT,
            at=(index,) if isinstance(value, list) else (),
        )
        for index, entry in enumerate(entries)
        if not isinstance(entry, str) or not entry.strip() or "\0" in entry
    ]
    if not entries:
        bad = [Refusal(found="an empty list", allowed=_FILES_ALLOWED, hint="Name at least one file.")]
    if bad:
        refuse(*bad)
    return tuple(entries)


def _files_or_share(value: object) -> object:
    if (share := quoted_share(value)) is not None:
        refuse(Refusal(found=repr(value), allowed=SHARE_ALLOWED, hint=f"Write {share:g}, without quotes."))
    if not isinstance(value, int | float):
        return _files(value)
    # also true and false, which are numbers to Python
    if refusals := share_refusals(value):
        refuse(*refusals)
    return float(value)


def _plain_files(value: tuple[str, ...] | float) -> object:
    if isinstance(value, float):
        return value
    # as it is usually written
    return value[0] if len(value) == 1 else list(value)


_FILES_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
_WEIGHTED_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_NUMBER},
    },
    "required": ["path"],
    "additionalProperties": False,
}
# a file with its weight is accepted where task files are read, and becomes train and weights
_TRAIN_ENTRY = {"anyOf": [{"type": "string"}, _WEIGHTED_SCHEMA]}
_TRAIN_SCHEMA = {"anyOf": [*_TRAIN_ENTRY["anyOf"], {"type": "array", "items": _TRAIN_ENTRY, "minItems": 1}]}
Files = Annotated[
    tuple[str, ...], BeforeValidator(_files), PlainSerializer(_plain_files), WithJsonSchema(_TRAIN_SCHEMA)
]
FilesOrNothing = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(lambda value: None if value is None else _files(value)),
    PlainSerializer(lambda value: None if value is None else _plain_files(value)),
    WithJsonSchema({"anyOf": [*_FILES_SCHEMA["anyOf"], {"type": "null"}]}),
]
FilesOrShare = Annotated[
    tuple[str, ...] | float,
    BeforeValidator(_files_or_share),
    PlainSerializer(_plain_files),
    WithJsonSchema({"anyOf": [*_FILES_SCHEMA["anyOf"], {"type": "number", "exclusiveMinimum": 0, "maximum": 1}]}),
]


if TYPE_CHECKING:
    _DatasetKeys = DatasetSettings
else:
    _TRAIN = setting(
        allowed=_FILES_ALLOWED, description="training rows; several data sets with weights: {path: FILE, weight: 0.3}"
    )
    _VALIDATION = setting(
        0.1,
        allowed=SHARE_ALLOWED,
        description="validation rows, or the share of the training rows to put aside (seeded, disjoint)",
    )
    _TEST = setting(
        None,
        allowed=f"null, {_FILES_ALLOWED}",
        description="rows that the best adapter, the base model and the default configuration are measured on once",
    )
    _DatasetKeys = section_with(
        DatasetSettings,
        train=(Files, _TRAIN),
        validation=(FilesOrShare, _VALIDATION),
        test=(FilesOrNothing, _TEST),
    )


class DatasetSection(_DatasetKeys):
    """Where the rows come from and how they become tokens."""

    if TYPE_CHECKING:
        train: Files
        validation: FilesOrShare
        test: FilesOrNothing

    def settings(self, **others: Any) -> DatasetSettings:
        names = ("train", "validation", "test", *setting_fields(DatasetSettings))
        return DatasetSettings(**{name: getattr(self, name) for name in names}, **others)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> DatasetSection:
        try:
            self.settings()
        except InputError as error:
            # these checks belong to the data layer, which is also used without task files
            refuse(*(refusal_of(problem) for problem in error.problems))
        return self
