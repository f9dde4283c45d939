"""The rotary table: its bits do not depend on its growth, and it ends where the scaling does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.core.errors import InputError
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from tests.models.fixtures.streams import pack
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


def test_positions_beyond_the_scaling_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    decoder = load_decoder(save_checkpoint(tmp_path, "Llama", rope_parameters=rope, max_position_embeddings=20))
    tokens, positions, attention = pack([torch.zeros(21, dtype=torch.int64)])
    with pytest.raises(InputError, match="21 tokens; allowed: at most 20 with this model's 'dynamic'"):
        decoder.forward(tokens, positions_T=positions, attention=attention, lora=None)


def test_a_position_has_the_same_angles_however_far_the_table_has_grown(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Llama", max_position_embeddings=8192)
    lately, early = load_decoder(folder), load_decoder(folder)
    long, short = torch.arange(5000) % 67, torch.arange(40)

    def hidden(decoder: Decoder, sequence: Tensor) -> Tensor:
        tokens, positions, attention = pack([sequence])
        return decoder.forward(tokens, positions_T=positions, attention=attention, lora=None)

    expected = hidden(early, short)
    hidden(lately, long)
    assert torch.equal(hidden(lately, short), expected)
