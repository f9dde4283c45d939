"""Embedding and head of an adapter's own on a model that transformers computes: as PEFT trains them, and in answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD
from cohort.models.bridge.adapted import row_scale
from cohort.models.config_file import read_config
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal

# PEFT says of a model with one table that the trained copies are two
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        # an embedding that scales its rows and is the head as well; experts; factors on the logits; no norm of rows
        ("gemma4_text", (EMBEDDING, HEAD)),
        ("olmoe", (EMBEDDING,)),
        ("cohere", (HEAD,)),
        ("lfm2", (EMBEDDING,)),
    ],
)
def test_five_steps_and_the_saved_files_are_peft_s(tmp_path: Path, name: str, saved: tuple[str, ...]) -> None:
    found = compare(save_tiny(name, tmp_path), saved=saved)
    assert found.way == "bridged"
    # a row of a table is a sum over all places of its token, and most rows change little: 1.04e-5 was seen
    require_equal(replace(found, weights=found.weights / 3))


@pytest.mark.parametrize(
    ("name", "there"),
    [("olmoe", (EMBEDDING, HEAD)), ("gpt2", (HEAD,)), ("phi", (EMBEDDING,)), ("gpt_neox", (HEAD,))],
)
def test_what_has_another_name_or_a_bias_is_none_of_them(tmp_path: Path, name: str, there: tuple[str, ...]) -> None:
    bridged = read_config(save_tiny(name, tmp_path)).bridged
    assert bridged is not None
    assert bridged.whole_modules == there


def test_what_an_embedding_does_with_its_rows_is_found_by_calling_it() -> None:
    class Scaled(torch.nn.Embedding):
        embed_scale = math.sqrt(64)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * self.embed_scale

    class Shifted(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) + 1

    assert row_scale(torch.nn.Embedding(9, 4)) == 1.0
    assert row_scale(Scaled(9, 64)) == 8.0
    assert row_scale(Shifted(9, 4)) is None
