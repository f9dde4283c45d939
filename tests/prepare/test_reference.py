"""The reference of a task: kept by content, computed again where anything that it depends on is another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cohort.machine.machine import Machine
from cohort.models.weights import load_decoder
from cohort.prepare import reference as module
from cohort.prepare.reference import Reference
from cohort.training.objectives import OBJECTIVES
from tests.training.small_models import compared_rows, save_llama

ROWS = compared_rows(6, seed=1, longest=14)


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reference:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    save_llama(tmp_path / "model", num_layers=1)
    task: Any = SimpleNamespace(objective=SimpleNamespace(reference_adapter=None))
    monkeypatch.setattr(module, "task_objective", lambda _: OBJECTIVES["dpo"])
    machine = Machine(device=torch.device("cpu"), device_name="x", dtype="float32", threads=1, memory_bytes=1 << 30)
    decoder = load_decoder(tmp_path / "model", dtype="float32", device="cpu")
    return Reference(task=task, measured_by=decoder, machine=machine, model_hash="a", token_budget=30)


def test_answers_are_asked_once_and_found_again(reference: Reference) -> None:
    said: list[str] = []
    (first,), note = reference.of_rows([ROWS], say=said.append)
    assert "computed once for all trials" in note
    assert len(said) == 1
    (second,), note = reference.of_rows([replace(ROWS, sources=("elsewhere",) * 6)], say=said.append)
    assert "from the cache" in note
    assert len(said) == 1
    assert np.array_equal(first.reference_logps, second.reference_logps)
    assert (first.reference_logps < 0).all()
    # rows that stand in several splits are one answer
    both, note = reference.of_rows([ROWS, ROWS])
    assert "6 answers" in note
    assert np.array_equal(both[1].reference_logps, first.reference_logps)


def test_other_weights_formats_tokens_or_threads_are_asked_again(reference: Reference) -> None:
    reference.of_rows([ROWS])
    others = [
        replace(reference, model_hash="b"),
        replace(reference, machine=replace(reference.machine, threads=2)),
        replace(reference, machine=replace(reference.machine, dtype="bfloat16")),
        replace(reference, machine=replace(reference.machine, quantization="nf4")),
    ]
    for other in others:
        assert "computed" in other.of_rows([ROWS])[1]
    tokens = ROWS.tokens_T.copy()
    tokens[0] += 1
    assert "computed" in reference.of_rows([replace(ROWS, tokens_T=tokens)])[1]


def test_a_damaged_or_readonly_cache_only_costs_time(reference: Reference, tmp_path: Path) -> None:
    (expected,), _ = reference.of_rows([ROWS])
    (file,) = (tmp_path / "cache" / "reference_logps").glob("*.npy")
    file.write_bytes(file.read_bytes()[:-8])
    (found,), note = reference.of_rows([ROWS])
    assert "computed" in note
    assert np.array_equal(found.reference_logps, expected.reference_logps)
    file.unlink()
    file.parent.rmdir()
    file.parent.touch()
    _, note = reference.of_rows([ROWS])
    assert "not kept" in note
