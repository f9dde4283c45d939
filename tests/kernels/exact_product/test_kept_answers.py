"""Answers of the BLAS on disk: read by the next process, unless a library, a GPU or our own kernel is another one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product import kept_answers as module
from cohort.kernels.exact_product.kept_answers import KeptAnswers


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


def test_other_libraries_settings_and_gpus_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    library, maps = tmp_path / "libcublas.so.13", tmp_path / "maps"
    library.write_text("a library")
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 123    {library}\n7f02-7f03 r-xp 00000000 08:01 124    /lib/libc.so\n"
    )
    monkeypatch.setattr(module, "_MAPS", maps)
    facts = [module._facts(torch.device("cuda"))]
    assert facts[0] == module._facts(torch.device("cuda"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    facts.append(module._facts(torch.device("cuda")))
    library.write_text("another library")
    facts.append(module._facts(torch.device("cuda")))
    gpu.multi_processor_count = 114
    facts.append(module._facts(torch.device("cuda")))
    assert len({str(found) for found in facts}) == 4
