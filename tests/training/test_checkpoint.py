"""A trial's state file: round trip, and every kind of damage noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.bank import AdapterState
from cohort.training.checkpoint import (
    DamagedStateError,
    deserialise_state,
    read_weights,
    serialise_state,
    serialise_weights,
)
from cohort.training.trial import TrialState


def state() -> TrialState:
    adapter = AdapterState(weights=torch.randn(5, 7), exp_avg=torch.randn(5, 7), exp_avg_sq=torch.rand(5, 7))
    return TrialState(adapter=adapter, step=12)


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    expected, path = state(), tmp_path / "trial.safetensors"
    path.write_bytes(serialise_state(expected))
    found = deserialise_state(path)
    assert found.step == 12
    for name in ("weights", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(found.adapter, name), getattr(expected.adapter, name))
    assert torch.equal(read_weights(path)[0], expected.adapter.weights)


def test_non_finite_weights_survive(tmp_path: Path) -> None:
    weights = torch.tensor([[float("nan"), float("inf"), 1.0]])
    path = tmp_path / "best.safetensors"
    path.write_bytes(serialise_weights(weights, step=3))
    found, step = read_weights(path)
    assert step == 3
    assert torch.equal(found.view(torch.int32), weights.view(torch.int32))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing", "text"])
def test_damage_is_noticed_and_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "trial.safetensors"
    content = bytearray(serialise_state(state()))
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-3] ^= 0x10
    elif damage == "empty":
        content = bytearray()
    elif damage == "text":
        content = bytearray(b"not a state")
    if damage != "missing":
        path.write_bytes(content)
    with pytest.raises(DamagedStateError, match=r"trial\.safetensors"):
        deserialise_state(path)


def test_a_best_checkpoint_is_no_full_state(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    path.write_bytes(serialise_weights(torch.zeros(2, 2), step=1))
    with pytest.raises(DamagedStateError):
        deserialise_state(path)
