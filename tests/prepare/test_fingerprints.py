"""A base model is known by its weights and configuration; a process that ends does not wait until it has read them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.prepare import fingerprints as file_digests
from cohort.prepare.fingerprints import kept_digest, model_fingerprint, start_fingerprint


def write_files(folder: Path, *, num_weights: int = 6) -> Path:
    folder.mkdir()
    for number in range(num_weights):
        (folder / f"model-{number}.safetensors").write_bytes(bytes([number]) * 100)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("a card")
    return folder


def test_it_is_a_hash_over_names_and_digests_of_weights_and_configuration(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "model")
    expected = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        expected.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    assert model_fingerprint(folder) == expected.hexdigest()
    assert start_fingerprint(folder).result() == expected.hexdigest()
    (folder / "README.md").write_text("another card")
    assert model_fingerprint(folder) == expected.hexdigest()
    (folder / "model-5.safetensors").write_bytes(b"other")
    assert model_fingerprint(folder) != expected.hexdigest()


def test_an_error_of_a_file_is_raised(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError):
        start_fingerprint(folder).result()


def test_a_process_that_ends_does_not_wait_for_it(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from cohort.prepare import fingerprints\n"
        "fingerprints.model_fingerprint.__kwdefaults__['digest_of'] = lambda path: time.sleep(600)\n"
        "fingerprints.start_fingerprint(Path(sys.argv[1]))\n"
        "time.sleep(0.5)\n"
    )
    folder = write_files(tmp_path / "model")
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=60)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, cache, reads = tmp_path / "weights", tmp_path / "cache", []

    def read(path: Path) -> bytes:
        reads.append(path)
        return hashlib.sha256(path.read_bytes()).digest()

    monkeypatch.setattr(file_digests, "file_digest", read)
    monkeypatch.setattr(file_digests, "_SETTLED_SECONDS", -1.0)
    weights.write_bytes(b"first")
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"first").digest()
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"first").digest()
    assert len(reads) == 1
    before = weights.stat()
    weights.write_bytes(b"other")
    # a tool that puts back the time of the last change cannot put back the ctime
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"other").digest()
    next((cache / "file-digests").iterdir()).write_text("{}")
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"other").digest()
    assert len(reads) == 3


def test_a_file_written_just_now_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"first")
    kept_digest(tmp_path / "weights", cache_directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
