"""A trial's state file: round trip, and every kind of damage noticed."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.training.checkpoint import (
    DamagedStateError,
    deserialise_state,
    is_whole_state,
    read_weights,
    write_state,
)
from cohort.training.trial import TrialState

MOMENTS = ("exp_avg", "exp_avg_sq")


def state() -> TrialState:
    moments = {"exp_avg": torch.randn(5, 7), "exp_avg_sq": torch.rand(5, 7)}
    return TrialState(adapter=AdapterState(weights=torch.randn(5, 7), moments=moments), step=12)


def written(tensors: dict[str, torch.Tensor], *, step: int) -> bytes:
    stream = io.BytesIO()
    write_state(stream, tensors, step=step)
    return stream.getvalue()


def serialise_state(state: TrialState) -> bytes:
    return written(state.adapter.tensors, step=state.step)


def serialise_weights(weights: torch.Tensor, *, step: int) -> bytes:
    return written({"weights": weights}, step=step)


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    expected, path = state(), tmp_path / "trial.safetensors"
    path.write_bytes(serialise_state(expected))
    found = deserialise_state(path, moments=MOMENTS)
    assert found.step == 12
    assert found.adapter.tensors.keys() == {"weights", *MOMENTS}
    assert all(torch.equal(tensor, expected.adapter.tensors[name]) for name, tensor in found.adapter.tensors.items())
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
        deserialise_state(path, moments=MOMENTS)
    assert not is_whole_state(path)


def test_a_best_checkpoint_is_no_full_state(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    path.write_bytes(serialise_weights(torch.zeros(2, 2), step=1))
    assert is_whole_state(path)
    with pytest.raises(DamagedStateError):
        deserialise_state(path, moments=MOMENTS)


def test_files_are_the_bytes_they_were_before_optimizers_declared_their_moments() -> None:
    weights = torch.arange(6, dtype=torch.float32).view(2, 3)
    moments = {"exp_avg": weights + 10, "exp_avg_sq": weights + 20}
    content = serialise_state(TrialState(adapter=AdapterState(weights=weights, moments=moments), step=3))
    assert hashlib.sha256(content).hexdigest() == "3d19b19ef73b4b9a61c454803ed4edbdcf6af815d6001ac9409c9a77adb94a84"
