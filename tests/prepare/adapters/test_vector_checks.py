"""What a task may say of VeRA trials: each value is read by some trial, and no two trials differ in nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.prepare.adapters.vector_checks import has_vectors, vector_notes, vector_problems
from cohort.tasks.loading import task_from_mapping

LINEARS = {"model.layers.0.self_attn.q_proj": (32, 16), "model.layers.0.mlp.down_proj": (48, 32)}
WHEN_LORA = {"values": [16, 32], "when": {"use_vera": [False]}}


def found(tmp_path: Path, *, lora: dict[str, Any], space: dict[str, Any]) -> list[str]:
    data = {"model_name_or_path": "model", "dataset": {"train": "rows.jsonl"}, "lora": lora, "search": {"space": space}}
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").touch()
    task = task_from_mapping(data, base_directory=tmp_path)
    assert has_vectors(task) is (lora.get("use_vera", False) or "use_vera" in space)
    return [f"{problem.where.key}: {problem.found}" for problem in vector_problems(task, linears=LINEARS)]


def test_each_size_is_noted_once_next_to_plain_lora() -> None:
    plain, vera = AdapterSpec(r=8, lora_alpha=8.0), AdapterSpec(r=12, lora_alpha=8.0, use_vera=VectorAdapter())
    (note,) = vector_notes([plain, vera, vera], linears=LINEARS)
    # two linears of 12 and their outputs, 16 and 32; a rank row has 128 entries
    assert note == "VeRA, r 12: 72 trainable parameters, as LoRA of rank 0.562"


@pytest.mark.parametrize(
    ("lora", "space", "expected"),
    [
        ({"use_vera": True, "r": 32}, {}, []),
        ({}, {"use_vera": [True, False], "lora_alpha": WHEN_LORA}, []),
        ({}, {"use_vera": [True, False], "lora_alpha": [16, 32]}, ["a search over lora_alpha, which VeRA"]),
        ({"use_vera": True, "use_rslora": True}, {}, ["use_rslora, which VeRA"]),
        ({"use_vera": True, "r": 33}, {}, ["r 33 with use_vera"]),
        ({}, {"d_initial": [0.1, 1.0]}, ["a search over d_initial, which LoRA"]),
        ({"projection_prng_key": 3}, {}, ["projection_prng_key, which LoRA"]),
        ({"save_projection": False}, {}, ["save_projection: false, which LoRA"]),
    ],
)
def test_values_that_no_trial_reads_are_named(
    tmp_path: Path, lora: dict[str, Any], space: dict[str, Any], expected: list[str]
) -> None:
    problems = found(tmp_path, lora=lora, space=space)
    assert len(problems) == len(expected)
    assert all(words in problem for problem, words in zip(problems, expected, strict=True))
