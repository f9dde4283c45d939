"""A wrong task file is reported together with its model and its rows, as far as they do not depend on each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.prepare.fitting_task import load_fitting_task
from cohort.prepare.inputs import read_inputs
from cohort.tasks.loading import load_task
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs

BAD_ROW = '{"prompt": "1+1="}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path / "inputs")


def problems_of(folder: Path, **changes: Any) -> list[str]:
    """Return the problems of a task file with ``changes``, as users read them."""
    file = folder / "task.yaml"
    file.write_text(json.dumps(tiny_data() | changes, indent=1))
    with pytest.raises(InputError) as caught:
        read_inputs(load_fitting_task(file))
    return [f"{problem.where.file.rpartition('/')[2]} {problem.found}" for problem in caught.value.problems]


def test_a_wrong_file_is_reported_with_its_inputs_and_a_right_one_is_not_read(folder: Path, tmp_path: Path) -> None:
    file = folder / "task.yaml"
    file.write_text(json.dumps({**tiny_data(lora={"target_modules": ["q_prj"]}), "prority": 3}))
    with pytest.raises(InputError) as caught:
        load_fitting_task(file)
    assert len(caught.value.problems) == 2
    # nothing of the model is read where the file is right
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "task.yaml").write_text(json.dumps(tiny_data()))
    assert load_fitting_task(tmp_path / "task.yaml").priority == 0


@pytest.mark.parametrize("model", ["./modl", "modl"])
def test_a_missing_model_hides_no_missing_rows(folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = problems_of(folder, model_name_or_path=model, dataset={"train": "trian.jsonl", "validation": 0.25})
    assert len(found) == 2
    assert any("no such directory" in problem or "'./modl', which does not exist" in problem for problem in found)
    assert "task.yaml 'trian.jsonl', which does not exist" in found


@pytest.mark.parametrize("model", ["./modl", "modl"])
def test_a_missing_model_hides_no_bad_row(folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with (folder / "train.jsonl").open("a") as rows:
        rows.write(BAD_ROW)
    found = problems_of(folder, model_name_or_path=model)
    assert len(found) == 2
    assert found[1].startswith("train.jsonl no 'completion'")


@pytest.mark.parametrize(
    ("problem", "others"),
    [
        ("missing", {}),
        ("missing", {"prority": 3}),
        ("no tokenizer", {}),
        ("unsupported", {}),
        ("unsupported", {"prority": 3}),
    ],
)
def test_a_model_that_is_wrong_waits_for_no_rows_of_the_hub(
    folder: Path, problem: str, others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("cohort.data.files.rows.hub_rows", lambda source, **_: pytest.fail(f"read {source}"))
    if problem == "no tokenizer":
        (folder / "model" / "tokenizer.json").unlink()
    elif problem == "unsupported":
        (folder / "model" / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    model = "modl" if problem == "missing" else tiny_data()["model_name_or_path"]
    rows = {"train": ["train.jsonl", "owner/rows"], "validation": 0.25}
    assert len(problems_of(folder, model_name_or_path=model, dataset=rows, **others)) == 1 + len(others)


def test_missing_rows_hide_no_model_that_cannot_be_read(folder: Path) -> None:
    (folder / "model" / "config.json").write_text("{")
    found = problems_of(folder, dataset={"train": "trian.jsonl", "validation": 0.25})
    assert len(found) == 2


def test_an_unsupported_model_hides_no_bad_row(folder: Path) -> None:
    config = json.loads((folder / "model" / "config.json").read_text())
    config |= {"architectures": ["BertModel"], "model_type": "bert"}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    with (folder / "train.jsonl").open("a") as rows:
        rows.write(BAD_ROW)
    found = problems_of(folder)
    assert len(found) == 2
    assert found[1].startswith("train.jsonl no 'completion'")


def test_a_right_file_asks_the_hub_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cohort.prepare.fitting_task.refuse_missing_model", lambda name: pytest.fail(f"asked for {name}")
    )
    (folder / "task.yaml").write_text(json.dumps(tiny_data() | {"model_name_or_path": "owner/model"}))
    assert load_fitting_task(folder / "task.yaml") == load_task(folder / "task.yaml")
