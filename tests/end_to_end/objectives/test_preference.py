"""Preference tuning from a task to its results: resumed bit for bit, beside other objectives, with its own metrics."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.engine.session import Session
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.runs.results.verdicts import comparison_lines, verdicts
from cohort.tasks.loading import TaskFile
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=60)
SPACES: dict[str, dict[str, Any]] = {
    "dpo": {"beta": [0.1, 0.5]},
    "orpo": {"beta": [0.1, 1.0]},
    "cpo": {"loss_type": ["sigmoid", "hinge"]},
    "simpo": {"simpo_gamma": [0.5, 1.5]},
    "kto": {"desirable_weight": [1.0, 2.0]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(24)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


def preference_task(folder: Path, objective: object, **sections: Any) -> TaskFile:
    name = objective["type"] if isinstance(objective, dict) else str(objective)
    own: dict[str, Any] = {
        "dataset": {"train": "pairs.jsonl"},
        "training": {"max_steps": 4},
        "evaluation": {"metric": "reward_accuracy"},
        "search": {"space": {"learning_rate": [1e-2], "r": [2, 4], **SPACES[name]}},
        "objective": objective,
    }
    return tiny_task(folder, **{**own, **sections})


def notes_of(task: TaskFile, run: Path, **options: Any) -> list[str]:
    watcher = Interrupting(**options)
    tune(task, run, options=OPTIONS, watcher=watcher, clock=TickingClock())
    return watcher.notes


@pytest.mark.parametrize("objective", SPACES)
def test_a_sweep_of_each_objective_resumes_bit_for_bit(folder: Path, tmp_path: Path, objective: str) -> None:
    task = preference_task(folder, objective)
    notes = notes_of(task, tmp_path / "whole")
    expected = outcome_of(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        notes_of(task, tmp_path / "stopped", steps=5)
    again = Interrupting()
    resume(tmp_path / "stopped", options=OPTIONS, watcher=again)
    assert outcome_of(tmp_path / "stopped") == expected
    computed = [note for note in notes if "reference log-probabilities" in note]
    kept = [note for note in again.notes if "reference log-probabilities" in note]
    if objective not in ("dpo", "kto"):
        assert computed == kept == []
    else:
        # both answers of 24 pairs, by the base model
        assert computed == ["reference log-probabilities of 48 answers by the base model: computed once for all trials"]
        assert kept == ["reference log-probabilities of 48 answers by the base model: from the cache"]


def test_results_show_rewards_and_what_chose(folder: Path, tmp_path: Path) -> None:
    notes_of(preference_task(folder, "dpo"), tmp_path / "run")
    with (tmp_path / "run" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {"beta", "eval_reward_accuracy", "eval_reward_margin"} <= set(rows[0])
    assert 0 <= float(rows[0]["eval_reward_accuracy"]) <= 1
    assert "reward accuracy" in (tmp_path / "run" / "report.html").read_text()
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert reader.facts().task.objective == "dpo"
        results = read_results(reader)
    # of the base model, which is the reference, 0 says nothing
    assert results.chance == 0.5
    assert comparison_lines(results)["base"].endswith("it is the reference; chance is 0.5")
    assert "base model" not in " ".join(verdicts(results))
    assert "of the base model" not in (tmp_path / "run" / "best" / "README.md").read_text().replace(
        "loss of the base model", ""
    )


def test_sft_and_dpo_share_their_passes_and_end_as_alone(folder: Path, tmp_path: Path) -> None:
    tasks = {
        "sft": tiny_task(folder, training={"max_steps": 4}),
        "dpo": preference_task(folder, "dpo"),
        "kto": preference_task(folder, "kto"),
    }
    session = Session(options=RunOptions(token_budget=200))
    for name, task in tasks.items():
        session.submit(task, tmp_path / f"shared-{name}", name=name)
    session.run()
    for name, task in tasks.items():
        tune(task, tmp_path / name, options=RunOptions(token_budget=200))
        assert outcome_of(tmp_path / f"shared-{name}") == outcome_of(tmp_path / name)


def test_a_reference_adapter_and_one_of_another_model(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, training={"max_steps": 3}), tmp_path / "sft", options=OPTIONS)
    task = preference_task(folder, {"type": "dpo", "reference_adapter": str(tmp_path / "sft" / "best")})
    (note,) = [note for note in notes_of(task, tmp_path / "dpo") if "reference log-prob" in note]
    assert "by the reference adapter" in note
    plain = preference_task(folder, "dpo")
    tune(plain, tmp_path / "plain", options=OPTIONS)
    assert outcome_of(tmp_path / "plain")["steps"] != outcome_of(tmp_path / "dpo")["steps"]
    # kto also measures it on the mismatched rows of each step
    kto = preference_task(folder, {"type": "kto", "reference_adapter": str(tmp_path / "sft" / "best")})
    tune(kto, tmp_path / "kto", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        notes_of(kto, tmp_path / "stopped", steps=5)
    resume(tmp_path / "stopped", options=OPTIONS)
    assert outcome_of(tmp_path / "stopped") == outcome_of(tmp_path / "kto")
    # the same shapes, other weights
    other = write_tiny_model(folder / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\x00\x40")
    with pytest.raises(InputError, match="an adapter of another base model"):
        tune(task.model_copy(update={"model_name_or_path": str(other)}), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
