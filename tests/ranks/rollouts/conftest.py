"""The model and the prompts of tests whose trials train on their own answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.data.tokenised import TokenisedRows
from tests.cli.tiny_task import write_tiny_model
from tests.ranks.rollouts.small_rollouts import prompt_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("rollouts") / "model")


@pytest.fixture(scope="module")
def rows(model: Path) -> TokenisedRows:
    return prompt_rows(model)
