"""Rows of parquet files and hub data sets, through the optional packages pyarrow and datasets."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.data.files.sources import HubSource, SourceFile, SplitName
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog

__all__ = ["hub_rows", "parquet_rows"]

_HUB_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev", "test"), "test": ("test",)}


def parquet_rows(source: SourceFile) -> Iterator[tuple[int, Mapping[str, Any] | BadRowError]]:
    """Yield (row number from 1, values) of a parquet file.

    Raises:
        InputError: pyarrow is not installed.
    """
    parquet = _optional("pyarrow.parquet", package="pyarrow", needed_for=source.shown)
    number = 0
    try:
        with parquet.ParquetFile(source.path) as file:
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield number, values
    # pyarrow's errors derive from ValueError or OSError; it has no other base we could name without importing it
    except (ValueError, OSError) as error:
        yield (
            number + 1,
            BadRowError(
                kind=ProblemKind.UNREADABLE,
                found=f"bad parquet ({str(error).splitlines()[0]})",
                allowed="a whole parquet file",
                hint="Copy or write the file again.",
            ),
        )


def hub_rows(
    source: HubSource, *, split: SplitName, where: Place, log: ProblemLog
) -> Iterator[tuple[int, Mapping[str, Any] | BadRowError]]:
    """Yield (row number from 1, values) of one split of a hub data set.

    ``validation`` reads the first of validation, valid, val, dev, test that exists; that it is test is noted in
    ``log``: who chooses an adapter by the test rows has none left to report.

    Raises:
        InputError: datasets is not installed, the hub cannot give the data set, or it has no such split.
    """
    datasets = _optional("datasets", package="datasets", needed_for=f"the hub data set {source.shown!r}")
    try:
        splits = datasets.load_dataset(source.name, source.config)
    # the hub client raises many unrelated types (network, authentication, missing names, ambiguous configs): all are
    # reported alike
    except Exception as error:
        # the user asked for it, so it is named before guesses
        from huggingface_hub import constants

        offline = "Unset HF_HUB_OFFLINE, which keeps the hub from being asked. " if constants.HF_HUB_OFFLINE else ""
        raise InputError(
            Problem(
                where=where,
                found=f"{source.shown!r}, which is not a local path; the hub did not provide it ({_first_line(error)})",
                allowed="a file, a list of files, a directory or a hub id such as openai/gsm8k:main",
                hint=f"{offline}Check the spelling, the network and the access rights, or download the data and name "
                "the file.",
            )
        ) from error
    for name in _HUB_SPLITS[split]:
        if name in splits:
            if split == "validation" and name == "test":
                log.add(
                    ProblemKind.VALIDATED_ON_TEST_SPLIT,
                    where=source.shown,
                    found="no validation split, so trials are compared on its test split",
                    allowed="rows that no reported result is measured on",
                    hint="Write validation: 0.1 to set training rows aside, or name a file.",
                )
            yield from enumerate(splits[name], start=1)
            return
    raise InputError(
        Problem(
            where=where,
            found=f"{source.shown!r} with the splits {', '.join(splits)}",
            allowed=f"a data set with a split named {' or '.join(_HUB_SPLITS[split])}",
            hint="Download the split you want and name the file.",
        )
    )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _optional(module: str, *, package: str, needed_for: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            Problem(
                where=needed_for,
                found=f"no package {package}",
                allowed=f"{package} installed, or the rows as .jsonl",
                hint=f"Run: pip install {package}",
            )
        ) from error
