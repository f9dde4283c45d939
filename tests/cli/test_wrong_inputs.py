"""A hundred wrong inputs: exit code 2, the place, and the hint that helps; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import cohort
from tests.cli.tiny_task import TASK, write_tiny_task


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and rows; tests write other files next to them."""
    folder = tmp_path_factory.mktemp("wrong")
    write_tiny_task(folder)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Return what a command that is refused says."""
    code, out, err = cohort(capsys, *arguments)
    assert code == 2, out + err
    assert "Traceback" not in out + err
    return err


@pytest.mark.parametrize(
    ("old", "new", "where", "hint"),
    [
        ("early_exit: none", "early_exit: hyperband", "early_exit", "Write early_exit: {rule: hyperband}."),
        ("early_exit: none", "early_exit: {rule: medain}", "early_exit.rule", "Did you mean rule: median?"),
        ("validation: 0.25", 'validation: "10%"', "dataset.validation", "Write 0.1, without quotes."),
        ("validation: 0.25", "validation: 25%", "dataset.validation", "Write 0.25, without quotes."),
        ("validation: 0.25", 'validation: "0.1"', "dataset.validation", "Write 0.1, without quotes."),
        ("validation: 0.25", "validation: 10", "dataset.validation", "Write 0.1 for 10 %"),
        ("num_gpus: 0", "report_to: tensorbord", "report_to", "Did you mean tensorboard?"),
        ("num_gpus: 0", "report_to: [mlflow, wandbb]", "report_to", "Did you mean wandb?"),
        ("num_gpus: 0", "load_in_4bit: true", "load_in_4bit", "quantised base models are not supported yet"),
        ("num_gpus: 0", "objective: stf", "objective", "Did you mean objective: sft?"),
        ("[1e-3, 1e-2]", ".inf", "search.space.learning_rate", "Write a finite number"),
        ("batch_size: 2", "weight_decay: .nan", "training.weight_decay", "Write a finite number"),
    ],
)
def test_a_task_file(
    inputs: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, where: str, hint: str
) -> None:
    assert old in TASK
    path = inputs / "wrong.yaml"
    path.write_text(TASK.replace(old, new))
    said = refused(capsys, "check", path)
    assert f"{path}:" in said
    assert where in said
    assert hint in said


def test_what_is_allowed_for_an_objective_is_built(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = inputs / "objective.yaml"
    path.write_text(TASK + "objective: stf\n")
    assert "allowed  sft\n" in refused(capsys, "check", path)


@pytest.mark.parametrize(
    ("name", "content", "where", "hint"),
    [
        ("semicolons.csv", "prompt;completion\n1+1=;2\n", ":1", "delimiter=';'"),
        ("array.jsonl", '[{"prompt": "a", "completion": "b"}]', ":1", "Name the file .json."),
        (
            "latin.jsonl",
            '{"prompt": "é", "completion": "b"}\n'.encode("latin-1") * 30,
            ":1-30",
            "Save the file as UTF-8",
        ),
        ("empty.jsonl", '{"prompt": "a", "completion": ""}\n' * 30, ":1-30", "Fill it in, or remove the row."),
    ],
)
def test_a_file_of_rows(
    inputs: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, where: str, hint: str
) -> None:
    (inputs / name).write_bytes(content.encode() if isinstance(content, str) else content)
    said = refused(capsys, "check", inputs / "task.yaml", "--dataset.train", inputs / name)
    assert "1 problem in the input" in said
    assert name + where in said
    assert hint in said


def test_an_output_is_refused_before_rows_are_read(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inputs / "bad.jsonl").write_text("{\n")
    (inputs / "full").mkdir()
    (inputs / "full" / "thesis.tex").touch()
    (inputs / "link").symlink_to(inputs / "nowhere")
    for name, found in (("full", "thesis.tex"), ("link", "a link to"), ("task.yaml", "a file")):
        # these rows would be a second problem if they were read
        said = refused(
            capsys, "tune", inputs / "task.yaml", "-o", inputs / name, "--dataset.train", inputs / "bad.jsonl"
        )
        assert "1 problem in the input" in said
        assert found in said
