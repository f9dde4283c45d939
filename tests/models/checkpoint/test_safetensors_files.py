"""Damaged, truncated and missing weight files are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.models.checkpoint.safetensors_files import read_headers
from tests.models.fixtures.tiny_checkpoints import problems_of, save_checkpoint


def test_a_truncated_file_says_how_much_is_missing(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    size = file.stat().st_size
    with file.open("rb+") as stream:
        stream.truncate(size - 1000)
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "truncated" in problem
    assert "did not finish" in problem


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 100, b"\x05\0\0\0\0\0\0\0[1,2]", b"<!doctype html><html>not found</html>"]
)
def test_a_damaged_file_is_named(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "damaged" in problem


def test_a_header_that_contradicts_itself_is_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    start = header["model.norm.weight"]["data_offsets"][0]
    header["model.norm.weight"]["data_offsets"] = [start, start + 8]
    rewritten = json.dumps(header).encode()
    file.write_bytes(len(rewritten).to_bytes(8, "little") + rewritten + content[8 + length :])
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "damaged" in problem
    header["model.norm.weight"]["data_offsets"] = ["a"]
    rewritten = json.dumps(header).encode()
    file.write_bytes(len(rewritten).to_bytes(8, "little") + rewritten + content[8 + length :])
    assert "damaged" in problems_of(checkpoint)[0]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Llama", max_shard_size="12KB")
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])
    problems = problems_of(folder)
    assert len(problems) == 2
    assert first.name in problems[0]
    assert "no such file" in problems[0]
    assert second.name in problems[1]
    assert "truncated" in problems[1]


def test_a_broken_index_is_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text("{")
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors.index.json" in problem


def test_no_weights_at_all(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (problem,) = problems_of(checkpoint)
    assert "no safetensors weights" in problem
    (checkpoint / "pytorch_model.bin").write_bytes(b"x")
    (problem,) = problems_of(checkpoint)
    assert "pytorch_model.bin" in problem
    assert "save_pretrained" in problem


def test_a_pointer_of_git_lfs_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    (problem,) = read_headers(tmp_path).problems
    assert "a Git LFS pointer, which stands for the file: `git lfs pull` fetches it" in problem.found
