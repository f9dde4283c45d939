"""From what the user wrote to what will be read: files of a path, a list, a directory, or a hub data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cohort.core.input_values.hub_ids import is_hub_id
from cohort.core.input_values.nearest_value import nearest_file
from cohort.core.source_location import Place
from cohort.core.unusual_path import unusual_path
from cohort.data.files.given_rows import GivenRows
from cohort.data.problems import ProblemKind, ProblemLog

__all__ = [
    "READABLE_SUFFIXES",
    "SPLITS",
    "DataSource",
    "GivenSource",
    "HubSource",
    "SourceFile",
    "SplitName",
    "resolve_sources",
]

READABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

# the words by which the hub recognises splits in file names (`datasets`, data_files.py)
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_HUB_CONFIG = re.compile(r"[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One local file. ``shown`` is how messages name it: as the user wrote it."""

    path: Path
    shown: str

    def place(self, number: int) -> Place:
        """Return how messages name the line ``number``, from 1."""
        return Place(file=self.shown, line=number)

    def num_bytes(self) -> int | None:
        """Return the file's size."""
        return self.path.stat().st_size


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A data set of the Hugging Face hub, read with the optional package ``datasets``."""

    name: str
    config: str | None

    @property
    def shown(self) -> str:
        """The id as the user wrote it."""
        return self.name if self.config is None else f"{self.name}:{self.config}"

    def place(self, number: int) -> Place:
        """Return how messages name the row ``number``, from 1."""
        return Place(file=self.shown, line=number)

    def num_bytes(self) -> int | None:
        """Return None: the data set is no one file."""
        return None


@dataclass(frozen=True, kw_only=True)
class GivenSource:
    """Rows given from Python, for the key ``where``."""

    rows: GivenRows
    where: Place

    @property
    def shown(self) -> str:
        return str(self.where)

    def place(self, number: int) -> Place:
        """Return how messages name the row ``number``, from 1: as Python counts, from 0."""
        return self.where.below(number - 1)

    def num_bytes(self) -> int | None:
        """Return the size of the file that a run keeps of them."""
        return len(self.rows.content)


DataSource = SourceFile | HubSource | GivenSource


def resolve_sources(
    written: str | Path | Sequence[str | Path],
    *,
    split: SplitName,
    base_directory: Path | None,
    where: Place,
    log: ProblemLog,
) -> list[SourceFile | HubSource]:
    """Return what to read, in order. What cannot be found is noted in ``log``.

    A directory gives its readable files by name; where some are named after splits (``train-00.parquet``,
    ``dev.jsonl``), only the files of ``split`` are taken.
    """
    items = [written] if isinstance(written, str | Path) else list(written)
    if not items:
        log.add(
            ProblemKind.INPUT, where=where, found="an empty list", allowed="at least one file", hint="Name a data file."
        )
    found: list[SourceFile | HubSource] = []
    for item in items:
        path = Path(item).expanduser()
        if base_directory is not None:
            path = base_directory / path
        shown = str(item)
        unusual = unusual_path(path)
        # an organisation of the hub may be called like a file here
        if unusual is not None and not (unusual.is_below_file and _could_be_hub_id(shown)):
            found_text = f"{shown!r:.80}, {unusual.found}"
            allowed = "a file, a list of files, a directory or a hub id"
            log.add(ProblemKind.INPUT, where=where, found=found_text, allowed=allowed, hint=unusual.hint)
        elif path.is_dir():
            found.extend(_directory_files(path, shown=shown, split=split, where=where, log=log))
        elif path.is_file():
            if path.suffix.lower() in READABLE_SUFFIXES:
                found.append(SourceFile(path=path, shown=shown))
            else:
                _note_suffix(path, where=where, log=log)
        elif _could_be_hub_id(shown):
            name, _, config = shown.partition(":")
            found.append(HubSource(name=name, config=config or None))
        else:
            _note_missing(path, shown=shown, where=where, log=log)
    return found


def _could_be_hub_id(text: str) -> bool:
    known_suffix = Path(text).suffix.lower() in (*READABLE_SUFFIXES, ".txt", ".tsv", ".gz", ".zst", ".arrow")
    name, colon, config = text.partition(":")
    return is_hub_id(name) and (not colon or _HUB_CONFIG.fullmatch(config) is not None) and not known_suffix


def _directory_files(
    directory: Path, *, shown: str, split: SplitName, where: Place, log: ProblemLog
) -> list[SourceFile | HubSource]:
    if (directory / "config.json").is_file() and any(directory.glob("*.safetensors")):
        log.add(
            ProblemKind.INPUT,
            where=where,
            found=f"the directory of a model {shown!r}",
            allowed=f"a directory with files of rows ({', '.join(READABLE_SUFFIXES)})",
            hint="Name the rows here and the model under model_name_or_path; `cohort init` takes MODEL, then DATA.",
        )
        return []
    files = sorted(p for p in directory.iterdir() if p.is_file() and p.suffix.lower() in READABLE_SUFFIXES)
    named = {path: _split_of(path) for path in files}
    if any(name is not None for name in named.values()):
        files = [path for path, name in named.items() if name == split]
    if not files:
        log.add(
            ProblemKind.INPUT,
            where=where,
            found=f"the directory {shown!r} without a {split} file"
            if named
            else f"the directory {shown!r} without data",
            allowed=f"files ending in {', '.join(READABLE_SUFFIXES)}",
            hint=f"Put {split}.jsonl there, or name the file itself.",
        )
    return [SourceFile(path=path, shown=str(Path(shown) / path.name)) for path in files]


def _split_of(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", path.stem.lower())
    for split, names in _SPLIT_WORDS.items():
        if any(word in names for word in words):
            return split
    return None


def _note_suffix(path: Path, *, where: Place, log: ProblemLog) -> None:
    log.add(
        ProblemKind.INPUT,
        where=where,
        found=f"{path.name!r}",
        allowed=f"files ending in {', '.join(READABLE_SUFFIXES)}",
        hint=_suffix_hint(path),
    )


def _suffix_hint(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in (".gz", ".bz2", ".xz", ".zst"):
        tool = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}[suffix]
        return f"Unpack it: `{tool} {path.name}`."
    if suffix in (".zip", ".tar", ".tgz"):
        return "Unpack it, and name a file of it."
    if suffix == ".tsv":
        python = "import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter='\\t'))"
        return f'Convert it: `python -c "{python}" < {path.name} > {path.stem}.csv`.'
    return "Convert the file to JSON lines, one object a line, and name it .jsonl."


def _unread_name(shown: str) -> str | None:
    """Return what to do about a name that other programs replace by something else; None for a plain path."""
    if "://" in shown:
        return "Download the file and name it, or name a data set of the hub as owner/name."
    if "*" in shown or "?" in shown:
        return "Name the folder, which stands for its files, or list the files: patterns are not expanded."
    if "$" in shown:
        return "Write the path itself: variables are not replaced."
    return None


def _note_missing(path: Path, *, shown: str, where: Place, log: ProblemLog) -> None:
    siblings = [p.name for p in path.parent.iterdir() if p.exists()] if path.parent.is_dir() else []
    near = nearest_file(path.name, siblings)
    if (unread := _unread_name(shown)) is not None:
        near = None
    hint = unread or (
        f"Did you mean {near!r}?"
        if near
        else "Check the path; relative paths start at the task file, in Python at the working directory."
    )
    log.add(
        ProblemKind.INPUT,
        where=where,
        found=f"{shown!r}, which does not exist",
        allowed="a file, a list of files, a directory or a hub id",
        hint=hint,
    )
