"""State files written in threads: the same bytes, whole or absent, and errors that reach the one who waits."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
import torch

from cohort.checkpoints import state_writer
from cohort.checkpoints.state_writer import StateWriter
from cohort.core.errors import StorageFullError
from cohort.training.checkpoint import read_weights, write_state
from tests.ranks.divided_states.test_divided_rows import Source, rows


def test_a_file_has_the_bytes_of_its_parts_and_their_checksum(tmp_path: Path) -> None:
    tensors = {"weights": torch.randn(3, 5), "exp_avg": torch.randn(3, 5, dtype=torch.float64)}
    writer, path = StateWriter(), tmp_path / "0001" / "state-000003.safetensors"
    writer.start(path, tensors, step=3)
    assert writer.is_writing(path)
    checksum = writer.secure([path])[path]
    assert not writer.is_writing(path)
    expected = io.BytesIO()
    write_state(expected, tensors, step=3)
    assert path.read_bytes() == expected.getvalue()
    assert checksum == hashlib.sha256(expected.getvalue()).hexdigest()
    behind = path.with_name("behind")
    writer.start(behind, tensors, step=3, is_behind=True)
    # hashed once a checkpoint comes to name it, as a file is that was there before
    assert writer.secure([behind, path]) == {behind: checksum, path: checksum}


def test_parts_on_ranks_are_put_together_in_the_thread_that_writes(tmp_path: Path) -> None:
    source = Source()
    writer, path = StateWriter(), tmp_path / "best"
    writer.start(path, {"weights": rows(source, [], number=3)}, step=7)
    writer.secure([path])
    weights, step = read_weights(path)
    assert (step, weights.dtype, tuple(weights.shape), weights.unique().tolist()) == (7, torch.float32, (4, 10), [3.0])


def test_many_files_at_once_are_each_their_own(tmp_path: Path) -> None:
    writer = StateWriter()
    weights = {tmp_path / f"{number}": torch.full((2, 3), float(number)) for number in range(20)}
    for step, (path, tensor) in enumerate(weights.items()):
        writer.start(path, {"weights": tensor}, step=step)
    for step, (path, tensor) in enumerate(weights.items()):
        writer.finish(path)
        found, of_step = read_weights(path)
        assert (of_step, found.tolist()) == (step, tensor.tolist())


def test_an_error_reaches_who_waits_and_no_half_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_stream: object, _tensors: object, **_keys: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_writer, "write_state", fails)
    writer, path = StateWriter(), tmp_path / "best"
    writer.start(path, {"weights": torch.zeros(2, 2)}, step=1)
    writer.finish_all()
    with pytest.raises(StorageFullError, match="no space left"):
        writer.finish(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_what_a_stream_still_computes_is_waited_for(tmp_path: Path) -> None:
    writer, path = StateWriter(), tmp_path / "best"
    square = torch.randn(4096, 4096, device="cuda") / 64
    weights = square
    for _ in range(20):
        weights = weights @ square
    writer.start(path, {"weights": weights, "exp_avg": torch.ones(3)}, step=7)
    writer.finish(path)
    assert torch.equal(read_weights(path)[0], weights.cpu())
