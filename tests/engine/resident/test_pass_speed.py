"""How many tokens a training pass of so many seconds has."""

from __future__ import annotations

import pytest
import torch

from cohort.engine.resident.pass_speed import tokens_within
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from tests.cli.tiny_task import write_tiny_model


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    return load_decoder(folder, dtype="float32", device=torch.device("cpu"))


class Clock:
    """Each look is so many seconds after the one before."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._now = seconds, 0.0

    def __call__(self) -> float:
        self._now += self._seconds
        return self._now


def test_a_slow_model_has_few_tokens(decoder: Decoder) -> None:
    # 32 tokens forward take a second
    assert tokens_within(decoder, 0.75, most=2048, clock=Clock(1.0)) == 8
    assert tokens_within(decoder, 1e-6, most=2048, clock=Clock(1.0)) == 1


def test_a_fast_model_has_what_it_can_read(decoder: Decoder) -> None:
    assert tokens_within(decoder, 100.0, most=2048, clock=Clock(1e-3)) == decoder.config.max_position_embeddings
    assert tokens_within(decoder, 100.0, most=48, clock=Clock(1e-3)) == 48
