"""``cohort check``: what it shows, and every problem at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.command import cohort


def test_check_marks_what_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", str(folder / "task.yaml"))
    assert code == 0
    assert out.count("⟦") == 3
    assert "trials       4" in out
    assert "the task is valid" in out
    assert json.loads(cohort(capsys, "check", str(folder / "task.yaml"), "--json")[1])["num_trials"] == 4


def test_check_collects_problems_of_model_and_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = (folder / "train.jsonl").read_text().splitlines()
    rows[16] = '{"prompt": "1+1=", '
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(rows) + "\n")
    words = ("--dataset.train", str(bad), "--lora.target_modules", "[q_prj]")
    code, _, err = cohort(capsys, "check", str(folder / "task.yaml"), *words)
    assert code == 2
    assert "bad.jsonl:17" in err
    assert "q_proj" in err
    assert "command line --lora.target_modules" in err


def test_check_looks_at_the_device(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "device       cpu (" in cohort(capsys, "check", str(folder / "task.yaml"))[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ("--num_gpus", "1", "--lora.target_modules", "[q_prj]")
    code, _, err = cohort(capsys, "check", str(folder / "task.yaml"), *words)
    assert code == 2
    assert "1 GPU asked for, none that torch can use" in err
    assert "q_proj" in err, "all problems at once"


def test_check_prints_the_resolved_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", str(folder / "task.yaml"), "--resolved", "--training.seed", "11")
    assert code == 0
    assert "seed: 11" in out
    assert "select_fraction: 0.4" in out


def test_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", "--schema")
    assert code == 0
    assert "model_name_or_path" in json.loads(out)["properties"]


def test_the_resolved_task_as_json(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", task, "--resolved", "--json")
    assert code == 0
    assert json.loads(out)["dataset"]["validation"] == 0.25


def test_check_says_what_rewards_answers(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"1+{n}=", "answer": str(n + 1)}) for n in range(20)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    words = [
        *("check", str(folder / "task.yaml"), "--dataset.train", str(tmp_path / "prompts.jsonl")),
        *("--objective.type", "grpo", "--rewards", "[exact_match, {function: length, most: 3, weight: 0}]"),
    ]
    code, out, err = cohort(capsys, *words)
    assert code == 0, err
    assert "tokens, to be answered" in out
    assert "to train on (answers are drawn)" in out
    assert "steps, at most" in out
    assert "rewards      exact_match, length (measured only)" in out
    code, _, err = cohort(capsys, *words[:-1], "[{function: exact_match, column: target}]")
    assert code == 2
    assert "--rewards: functions[0]" in err
    assert "no column target in the row; its columns are answer" in err
