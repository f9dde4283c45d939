"""``cohort generate`` on a tiny run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.adapter_files import generate
from tests.cli.command import cohort


def test_generate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("generate", str(folder / "run"), "--prompt", "1+1=", "--max-new-tokens", "5", "--json")
    code, out, _ = cohort(capsys, *words)
    assert code == 0
    assert json.loads(out)[0]["prompt"] == "1+1="
    assert cohort(capsys, *words)[1] == out, "the likeliest tokens are the same each time"


def test_an_empty_answer_says_how_prompts_end(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["", "3"]
    found = SimpleNamespace(answers=answers, note=None, so_far=None)
    monkeypatch.setattr(generate, "generate_from_run", lambda *_, **__: found)
    words = ("generate", str(folder / "run"), "--prompt", "1+1=", "--prompt", "1+2=")
    assert cohort(capsys, *words) == (
        0,
        "\n3\n",
        "note: an answer is empty: end prompts as the training prompts end, one with a line break as --prompt "
        "$'...\\n'\n",
    )
    answers[0] = "2"
    assert cohort(capsys, *words)[2] == ""


def test_a_file_of_prompts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    words = ("generate", folder / "run", "--input", tmp_path / "prompts.jsonl", "--max-new-tokens", "4")
    code, out, err = cohort(capsys, *words, "--output", tmp_path / "answers.jsonl")
    assert (code, out) == (0, f"{tmp_path / 'answers.jsonl'}: answers to 2 prompts\n")
    assert "answering | 0 of 2 prompts" in err
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["1+1=", "2+2="]
    code, out, _ = cohort(capsys, *words, "-o", tmp_path / "again.jsonl", "--json")
    assert json.loads(out) == {
        "output": str(tmp_path / "again.jsonl"),
        "prompts": 2,
        "resumed": 0,
        "best_so_far": None,
    }


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "Add --prompt"),
        (("--input", "a.jsonl"), "Add --output FILE"),
        (("--output", "b.jsonl"), "Add --input FILE"),
        (("--prompt", "1", "--input", "a.jsonl"), "Put all prompts into the file"),
    ],
)
def test_one_way_to_ask(folder: Path, words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "generate", folder / "run", *words)
    assert (code, "Traceback" in err) == (2, False)
    assert hint in err


def test_a_trial_of_the_base_model_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, shown = cohort(capsys, "generate", tmp_path, "--prompt", "1+1=", "--base", "--trial", "3")
    assert code == 2
    assert "--base with --trial 3" in shown
    assert "Leave out --base, or --trial." in shown
