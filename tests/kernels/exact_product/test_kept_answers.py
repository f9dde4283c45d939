"""Answers of the BLAS on disk: read by the next process, unless a library, a GPU or our own kernel is another one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product import kept_answers as module
from cohort.kernels.exact_product.kept_answers import KeptAnswers, kept_answers


def test_the_next_process_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "caches" / "answers.jsonl"
    first = KeptAnswers(path)
    assert first.get("128 64 64") is None
    first.add("128 64 64", agrees=True)
    first.add("256 64 64", agrees=False)
    # two processes that began together
    other = KeptAnswers(path)
    other.add("512 64 64", agrees=True)
    first.add("1024 64 64", agrees=True)
    found = KeptAnswers(path)
    assert [found.get(f"{rows} 64 64") for rows in (128, 256, 512, 1024, 2048)] == [True, False, True, True, None]


def test_damaged_lines_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"key": "a", "agrees": true}\n{"key": "b", "agrees": 1}\n[]\n\xff\xfe\n7\n{"key": "c", "agr')
    answers = KeptAnswers(path)
    assert [answers.get(key) for key in "abc"] == [True, None, None]
    answers.add("c", agrees=False)
    assert KeptAnswers(path).get("c") is False


def test_a_place_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = KeptAnswers(tmp_path / "file" / "answers.jsonl")
    answers.add("a", agrees=True)
    assert answers.get("a") is True


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU, a BLAS that this process has loaded, and an empty cache."""
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    library, maps = tmp_path / "libcublas.so.13", tmp_path / "maps"
    library.write_text("a library")
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 123    {library}\n7f02-7f03 r-xp 00000000 08:01 9    /lib/libc.so\n"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(module, "_MAPS", maps)
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    return SimpleNamespace(gpu=gpu, library=library)


def kept() -> KeptAnswers:
    """Return the answers as a process reads them that starts now."""
    module._answers_with.cache_clear()
    return kept_answers(torch.device("cuda"))


def test_other_libraries_settings_and_gpus_are_asked(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    kept().add("128 64 64", agrees=True)
    assert kept().get("128 64 64") is True

    def is_asked() -> bool:
        return kept().get("128 64 64") is None

    with monkeypatch.context() as changed:
        changed.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        assert is_asked()
    with monkeypatch.context() as changed:
        changed.setattr(torch, "__version__", "2.99")
        assert is_asked()
    with monkeypatch.context() as changed:
        changed.setattr(module, "_own_sources", lambda: "another kernel")
        assert is_asked()
    machine.gpu.multi_processor_count = 114
    assert is_asked()
    machine.gpu.multi_processor_count = 132
    assert not is_asked()
    machine.library.write_text("another library")
    assert is_asked()


def test_what_torch_is_set_to_since_is_another_question(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept().add("128 64 64", agrees=True)
    matmul = SimpleNamespace(**dict.fromkeys(module._MATMUL_SETTINGS))
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    assert "allow_bf16_reduced_precision_reduction_split_k" in module._MATMUL_SETTINGS
    for setting in module._MATMUL_SETTINGS:
        kept_answers(torch.device("cuda")).add("256 64 64", agrees=True)
        setattr(matmul, setting, True)
        assert kept_answers(torch.device("cuda")).get("256 64 64") is None


@pytest.mark.parametrize("what", ["library", "sources"])
def test_what_an_answer_follows_from_is_known_or_it_is_not_kept(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    if what == "library":
        # replaced under a process that goes on
        machine.library.unlink()
    else:
        monkeypatch.setattr(module, "_own_sources", lambda: None)
    answers = kept()
    answers.add("128 64 64", agrees=True)
    assert answers.get("128 64 64") is True
    assert kept_answers(torch.device("cuda")) is answers
    assert not (tmp_path / "cache").exists()
