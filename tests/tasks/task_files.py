"""Task files that tests write, and the problems that reading them gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError, Problem
from cohort.tasks.loading import load_task

__all__ = ["BASE", "ROWS", "problems_of", "write"]

BASE = "base_model: model\ndataset: {train: train.jsonl}\n"
ROWS = '{"prompt": "a", "completion": "b"}\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "task.yaml"
    path.write_text(text)
    return path


def problems_of(folder: Path, text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_task(write(folder, text), overrides)
    return list(caught.value.problems)
