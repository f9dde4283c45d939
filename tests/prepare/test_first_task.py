"""What the values of a first task file follow from: rows, their lengths, and the model's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.files.rows import RawRow
from cohort.data.inspection import format_example
from cohort.planning.check import check_task
from cohort.prepare.first_task import separating_template, write_first_task
from cohort.tasks.first_task_file import FirstTaskFile
from cohort.tasks.loading import load_task
from tests.cli.tiny_task import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("first") / "model")


def rows(path: Path, count: int, row: dict[str, Any] | None = None) -> Path:
    made = (row or {"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def first(model: Path, *train: Path, **keys: Any) -> FirstTaskFile:
    file = train[0].parent / "task.yaml"
    return write_first_task(file, model=str(model), train=[str(path) for path in train], **keys)


@pytest.mark.parametrize(
    ("count", "share", "batch_sizes", "epochs"),
    [
        # half of few rows; sixteen of many; a batch of 4 needs 80 training rows
        (20, 0.5, [1], 4),
        (60, 0.27, [1], 3),
        (400, 0.1, [4, 16], 3),
    ],
)
def test_few_rows_are_trained_on_longer_in_smaller_batches(
    model: Path, tmp_path: Path, count: int, share: float, batch_sizes: list[int], epochs: int
) -> None:
    new = first(model, rows(tmp_path / "train.jsonl", count))
    assert (new.validation, list(new.batch_sizes), new.num_train_epochs) == (share, batch_sizes, epochs)
    assert new.data_note == f"{count} rows, prompt_completion"
    # the longest row has nine tokens, rounded up to what a person would write; no rank beyond the layers' width
    assert (new.max_length, list(new.ranks)) == (64, [8, 32])


@pytest.mark.parametrize(
    ("rows_of", "objective", "batch_sizes"),
    [
        ({"prompt": "1+1=", "chosen": "2", "rejected": "3"}, "dpo", [1]),
        ({"prompt": "1+1=", "completion": "2", "label": True}, "kto", [2]),
        # a class, not a judgement
        ({"prompt": "1+1=", "completion": "2", "label": 1}, "sft", [1]),
    ],
)
def test_rows_that_compare_answers_get_their_objective(
    model: Path, tmp_path: Path, rows_of: dict[str, Any], objective: str, batch_sizes: list[int]
) -> None:
    path = tmp_path / "train.jsonl"
    made = [{**rows_of, "prompt": f"{number}+1="} for number in range(40)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in made))
    new = first(model, path)
    assert (new.objective.name, list(new.batch_sizes)) == (objective, batch_sizes)
    assert (f"objective: {objective}" in new.text()) is (objective != "sft")
    assert ("metric: reward_accuracy" in new.text()) is (objective != "sft")


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"Question": "1+1=", "Answer": "2"}, {"prompt": "Question", "completion": "Answer"}),
        # the likelier name comes first, wherever its column stands
        ({"context": "a", "label": "b", "query": "c", "response": "d"}, {"prompt": "query", "completion": "response"}),
        ({"prompt": "1+1=", "completion": "2"}, {}),
        ({"problem": "1+1=", "completion": "2"}, {"prompt": "problem"}),
    ],
)
def test_columns_are_found_by_what_data_sets_call_them(
    model: Path, tmp_path: Path, row: dict[str, Any], columns: dict[str, str]
) -> None:
    made = [{key: f"{value}{number}" for key, value in row.items()} for number in range(20)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in made))
    assert dict(first(model, path).columns) == columns


def test_a_file_of_validation_rows_is_named_from_the_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    for name in ("train", "held"):
        rows(tmp_path / f"{name}.jsonl", 20)
    new = write_first_task(Path("tasks/task.yaml"), model=str(model), train=["train.jsonl"], validation="held.jsonl")
    assert (new.train, new.validation, new.model) == (["../train.jsonl"], "../held.jsonl", str(model))


def test_a_directory_of_one_split_gives_a_share(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    rows(folder / "train.jsonl", 20)
    file = tmp_path / "task.yaml"
    assert write_first_task(file, model=str(model), train=[str(folder)]).validation == 0.5
    again = write_first_task(tmp_path / "other.yaml", model=str(model), train=[str(folder)])
    assert file.read_text() == again.text().replace("other", "task")


@pytest.mark.parametrize(
    ("content", "found"),
    [("", "no rows"), ("{}\n", "{}"), ('{"prompt": \n', "bad JSON"), ("[1]\n", "[1]")],
)
def test_files_that_hold_no_rows_are_input_errors(model: Path, tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        first(model, path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "task.yaml").exists()


def test_the_file_must_be_new_and_its_directory_must_be_there(model: Path, tmp_path: Path) -> None:
    data = rows(tmp_path / "train.jsonl", 20)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    for file, found in (
        (data, "a file that exists"),
        (tmp_path / "link.yaml", "a link to .*nowhere, which does not exist"),
        (tmp_path / "no" / "task.yaml", "a directory that does not exist"),
    ):
        # refused before the model is looked for
        with pytest.raises(InputError, match=found):
            write_first_task(file, model="no model", train=["no rows"])


def test_question_and_answer_are_not_joined_with_nothing_between(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    made = [{"question": f"{number} and 1 is", "answer": str(number + 1)} for number in range(40)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in made))
    new = first(model, path)
    assert new.prompt_template == "{question}\n"
    assert "and 1 is\n⟦" in new.example.replace("\\n", "\n")
    task = load_task(tmp_path / "task.yaml")
    assert task.dataset.prompt_template == "{question}\n"
    (shown, *_) = check_task(task).examples
    # what the file says is what is trained
    assert format_example(shown).partition("\n")[2] == new.example


def test_prompts_that_lead_to_their_answer_stay_as_they_are(model: Path, tmp_path: Path) -> None:
    new = first(model, rows(tmp_path / "train.jsonl", 40))
    assert new.prompt_template is None
    assert "prompt_template" not in new.text()


Pair = tuple[object, object]


def paired_rows(*pairs: Pair, names: tuple[str, str] = ("prompt", "completion")) -> list[RawRow]:
    return [
        RawRow(where=Place(line=number), values=dict(zip(names, pair, strict=True)))
        for number, pair in enumerate(pairs, start=1)
    ]


@pytest.mark.parametrize(
    ("pairs", "template"),
    [
        ([("What is 3 plus 3?", "6")], "{prompt}\n"),
        ([("Once upon a time", "there was")], "{prompt}\n"),
        # the author ended the prompt, or began the answer
        ([("1+1=", "2")], None),
        ([("Q: 1 + 1\nA:", "2")], None),
        ([("What is 3 plus 3?\n", "6")], None),
        ([("What is 3 plus 3?", " 6")], None),
        # most rows decide
        ([("a?", "b"), ("c?", "d"), ("e? ", "f")], "{prompt}\n"),
        ([("a?", "b"), ("c? ", "d")], None),
        # conversations, gaps and mistakes are nothing to judge by
        ([([{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}])], None),
        ([("", "a"), (None, "b"), ("c", 3)], None),
        ([], None),
    ],
)
def test_what_most_rows_have_between_prompt_and_answer_decides(pairs: list[Pair], template: str | None) -> None:
    assert separating_template(paired_rows(*pairs), columns={}) == template


def test_the_template_names_the_column_of_the_file() -> None:
    glued = paired_rows(("a?", "b"), names=("question", "answer"))
    assert separating_template(glued, columns={"prompt": "question", "completion": "answer"}) == "{question}\n"
    # a template cannot name this one
    odd = paired_rows(("a?", "b"), names=("the.question", "answer"))
    assert separating_template(odd, columns={"prompt": "the.question", "completion": "answer"}) == "{prompt}\n"
