"""Ranks that hold one model together learn preferences; they measure what the base model gives the answers, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.engine.tune import resume, tune
from tests.end_to_end.several_ranks.outcomes import result_of
from tests.end_to_end.several_ranks.test_one_model_on_several_ranks import (
    OPTIONS,
    TWO,
    folder,
    require_near,
    task_of,
)
from tests.end_to_end.tiny_tasks import Interrupting, outcome_of
from tests.support.no_triton import use_no_triton

__all__ = ["folder"]


def preferences(folder: Path, objective: str) -> dict[str, Any]:
    """Write pairs of answers, and return what of a task trains on them."""
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(24)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return {
        "dataset": {"train": "pairs.jsonl"},
        "objective": objective,
        "evaluation": {"metric": "reward_accuracy"},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "strategy"), [("dpo", "pipeline"), ("orpo", "pipeline"), ("dpo", "tensor"), ("kto", "tensor")]
)
def test_preferences_are_learned_with_the_base_model_as_the_reference(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, strategy: str
) -> None:
    sections = preferences(folder, objective)
    tune(task_of(folder, **sections), tmp_path / "one", options=OPTIONS)
    # else what one process has measured would be found
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    watcher = Interrupting(10)
    with pytest.raises(KeyboardInterrupt):
        tune(task_of(folder, strategy=strategy, **sections), tmp_path / "run", options=TWO, watcher=watcher)
    resume(tmp_path / "run", options=TWO)
    is_measured = any("reference log-probabilities of 48 answers" in note for note in watcher.notes)
    assert is_measured == (objective != "orpo")
    if strategy == "pipeline":
        assert result_of(tmp_path / "run") == result_of(tmp_path / "one")
    else:
        require_near(tmp_path / "run", result_of(tmp_path / "one"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_two_gpus_learn_preferences(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Reference log-probabilities are measured by both GPUs; early losses are near those of one."""
    use_no_triton(monkeypatch)
    sections = preferences(folder, "dpo")
    for run, given in (("one", {"num_gpus": 1}), ("two", {"num_gpus": 2, "strategy": strategy})):
        tune(task_of(folder, **sections, **given), tmp_path / run, options=OPTIONS)
    expected, found = outcome_of(tmp_path / "one")["steps"], outcome_of(tmp_path / "two")["steps"]
    assert found.keys() & expected.keys()
    for key in found.keys() & expected.keys():
        if key[1] <= 2:
            # a difference of sums of a few tokens' log-probabilities, each with the rounding of bfloat16
            assert float(found[key][0]) == pytest.approx(float(expected[key][0]), rel=2e-2), key
