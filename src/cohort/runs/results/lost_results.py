"""Which results of a finished run are gone or torn; ``cohort resume`` writes them again.

A report may be deleted, or a copy of the directory may end early: an adapter that was cut off is found by its own
header, without reading its weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cohort.models.checkpoint.safetensors_files import is_whole
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts

__all__ = ["is_whole_file", "lost_results", "names_of_files"]


def lost_results(directory: RunDirectory, facts: RunFacts) -> tuple[str, ...]:
    """Return the results that a finished run should have and that are gone or cut off, by their paths in it."""
    tables = [directory.results_csv, directory.metrics_jsonl, directory.report]
    # a machine that stops may leave an empty one; a run whose trials failed at once has no metrics
    may_be_empty = (directory.metrics_jsonl,)
    lost = [file for file in tables if not file.is_file() or (file not in may_be_empty and not file.stat().st_size)]
    if facts.best_trial_id is not None:
        lost = [*(file for name in facts.best_files or () if not is_whole_file(file := directory.best / name)), *lost]
    return tuple(file.relative_to(directory.root).as_posix() for file in lost)


def names_of_files(folder: Path) -> Sequence[str]:
    """Return the paths of the files in ``folder`` within it, sorted."""
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def is_whole_file(file: Path) -> bool:
    """Return whether a file of an adapter is there from its first to its last byte."""
    try:
        if file.suffix == ".safetensors":
            return is_whole(file)
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        return file.is_file()
    except (OSError, ValueError):
        return False
