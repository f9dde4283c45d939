"""``cohort init`` writes a task file that can be tuned as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.tasks.loading import load_task
from tests.cli.command import cohort
from tests.cli.tiny_task import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("init") / "model")


def write_rows(path: Path, *, prompt: str = "prompt", completion: str = "completion", count: int = 60) -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = ({prompt: f"{number}+1=", completion: str(number + 1), "id": number} for number in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_it_writes_is_tuned_as_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks").mkdir()
    # from another directory than the file's: paths in it start at the file
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "train.jsonl", prompt="question", completion="answer")
    code, out, err = cohort(capsys, "init", model, "train.jsonl", "-o", "tasks/sums.yaml")
    assert code == 0, err
    assert "60 rows, prompt_completion; 6 configurations" in out
    assert "cohort tune tasks/sums.yaml" in out
    assert "The first row as the model sees it, the trained part in brackets:" in out
    text = (tmp_path / "tasks" / "sums.yaml").read_text()
    assert "columns: {prompt: question, completion: answer}" in text
    assert all(line.startswith("#") or ":" in line for line in text.splitlines())
    task = load_task(tmp_path / "tasks" / "sums.yaml")
    assert task.dataset.train == (str(tmp_path / "train.jsonl"),)
    # 16 of 60 rows for validation; 64 tokens hold the longest row; 32 is the width of the model
    assert (task.dataset.validation, task.dataset.max_length) == (0.27, 64)
    words = ("--training.num_train_epochs", "1", "--search.space", "{learning_rate: [1e-3]}")
    assert cohort(capsys, "tune", "tasks/sums.yaml", "-o", "run", *words)[0] == 0


def test_conversations_get_a_template_where_the_tokenizer_has_none(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = (
        [{"role": "user", "content": f"{number}+1="}, {"role": "assistant", "content": str(number + 1)}]
        for number in range(60)
    )
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    code, _, err = cohort(capsys, "init", model, tmp_path / "chat.jsonl", "-o", tmp_path / "task.yaml")
    assert code == 0, err
    assert load_task(tmp_path / "task.yaml").dataset.chat_template == "plain"


def test_running_text_above_the_context_is_split(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ({"text": f"{number} is a number, and " * 20} for number in range(40))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = cohort(capsys, "init", model, tmp_path / "text.jsonl", "-o", tmp_path / "task.yaml")
    assert code == 0, err
    assert load_task(tmp_path / "task.yaml").dataset.on_long_rows == "split"
    assert "the model's context; 40 longer rows of 40 split" in (tmp_path / "task.yaml").read_text()


def test_a_directory_with_validation_rows_is_used_for_both(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "validation"):
        write_rows(tmp_path / "rows" / f"{name}.jsonl", count=400 if name == "train" else 20)
    assert cohort(capsys, "init", model, tmp_path / "rows", "-o", tmp_path / "task.yaml")[0] == 0
    task = load_task(tmp_path / "task.yaml")
    assert task.dataset.validation == (str(tmp_path / "rows"),)
    assert list(task.search_space().parameters["batch_size"].values) == [4, 16]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model_name", "rows", "found", "hint"),
    [
        ("mdel", "train.jsonl", "no such directory", "Did you mean"),
        ("model", "trian.jsonl", "which does not exist", "Did you mean 'train.jsonl'?"),
        ("model", "odd.jsonl", "the keys left, right", "Rename the columns"),
        ("model", "numbers.jsonl", "(int)", "Write the value as text: in JSON in quotes."),
    ],
)
def test_what_cannot_be_tuned_is_refused_and_nothing_is_written(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model_name: str,
    rows: str,
    found: str,
    hint: str,
) -> None:
    write_rows(tmp_path / "train.jsonl")
    (tmp_path / "odd.jsonl").write_text('{"left": "a", "right": "b"}\n')
    (tmp_path / "numbers.jsonl").write_text('{"prompt": "a", "completion": 3}\n' * 20)
    code, _, err = cohort(capsys, "init", model.parent / model_name, tmp_path / rows, "-o", tmp_path / "task.yaml")
    assert code == 2
    assert found in err
    assert hint in err
    assert not (tmp_path / "task.yaml").exists()


def test_a_file_that_exists_is_kept(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("mine")
    code, _, err = cohort(capsys, "init", model, write_rows(tmp_path / "train.jsonl"), "-o", path)
    assert code == 2
    assert "a file that exists" in err
    assert path.read_text() == "mine"


def test_many_bad_rows_are_told_without_a_key_of_a_file_that_is_not_there(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "1", "completion": "2"}\n' + '{"prompt": "1"\n' * 30)
    code, _, shown = cohort(capsys, "init", model, tmp_path / "bad.jsonl", "-o", tmp_path / "task.yaml")
    assert code == 2
    assert "the first of 30 such rows" in shown
    assert "on_bad_rows" not in shown
