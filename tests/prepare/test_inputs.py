"""Inputs are read together, and every problem of theirs is listed at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError, Problem
from cohort.machine.machine import Machine
from cohort.planning.check import check_task
from cohort.prepare.inputs import read_inputs, read_inputs_and_machine
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import tiny_data, tiny_task, write_inputs

CPU = Machine(device=torch.device("cpu"), device_name="a CPU", dtype="float32", threads=1, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def limited(folder: Path, **sections: Any) -> TaskFile:
    """Return a task with a limit below what task files may ask for: its model is tiny."""
    task = tiny_task(folder, **sections)
    return task.model_copy(update={"memory": task.memory.model_copy(update={"limit": 1 << 10})})


def where(error: InputError) -> list[str]:
    return [str(problem.where).rpartition(": ")[2] for problem in error.problems]


def test_what_a_task_names_is_read(folder: Path) -> None:
    inputs = read_inputs(tiny_task(folder))
    assert inputs.num_trials == 6
    # a quarter of 24 rows is set aside, and evaluation takes 4 of those
    assert (len(inputs.data.train), len(inputs.data.validation)) == (18, 4)
    assert len(inputs.target_modules) == 6
    assert tuple(inputs.layout.linears) == inputs.target_modules


def test_problems_of_all_inputs_are_listed_with_those_known_before(folder: Path) -> None:
    known = Problem(where="num_gpus", found="2", allowed="1", hint="Write 1.")
    task = tiny_task(
        folder,
        lora={"target_modules": ["q_prj"]},
        search={"space": {"learning_rate": [1e-3], "r": [2]}, "constraints": ["r > 2"]},
        evaluation={"metric": "exact_match"},
        dataset={"max_length": 2},
    )
    with pytest.raises(InputError) as caught:
        read_inputs(task, also=[known])
    assert where(caught.value)[:3] == ["num_gpus", "lora.target_modules", "search.constraints"]
    assert len(caught.value.problems) > 3


def test_a_limit_below_the_base_model_is_listed_with_the_limit_that_would_do(folder: Path) -> None:
    task = limited(folder)
    with pytest.raises(InputError) as caught:
        read_inputs(task, machine=CPU)
    (problem,) = caught.value.problems
    assert "which the base model takes" in problem.allowed
    assert problem.hint.startswith("Raise it to ")
    # without rows the limit that would do is unknown, and the problem is listed all the more
    wrong = limited(folder, lora={"target_modules": ["q_prj"]})
    with pytest.raises(InputError) as caught:
        read_inputs(wrong, machine=CPU)
    assert where(caught.value) == ["lora.target_modules", "memory.limit"]
    assert caught.value.problems[1].hint.startswith("Raise it, remove it")


def test_rows_longer_than_the_models_context_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "long.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}", "completion": "7" * 200}) + "\n" for n in range(12)))
    task = tiny_task(folder, dataset={"train": str(rows), "max_length": 400})
    with pytest.raises(InputError, match="the model's context"):
        read_inputs(task)


def test_a_device_that_is_not_here_is_listed_with_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError) as caught:
        read_inputs_and_machine(tiny_task(folder, num_gpus=1, lora={"target_modules": ["q_prj"]}))
    assert where(caught.value) == ["num_gpus", "lora.target_modules"]
    _, machine = read_inputs_and_machine(tiny_task(folder))
    assert machine.device.type == "cpu"


def test_the_default_length_falls_to_the_models_context(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "short")
    with (folder / "train.jsonl").open("a") as stream:
        stream.write('{"prompt": "' + "1+" * 100 + '", "completion": "2"}\n')
    data = tiny_data()
    del data["dataset"]["max_length"]
    report = check_task(task_from_mapping(data, base_directory=folder))
    assert report.data.max_length == 128
    assert report.data.counts == {"too_long": 1}
    assert any("at most 128 tokens, the model's context" in note for note in report.notes)
    # a length that was chosen is not changed
    data["dataset"]["max_length"] = 2048
    with pytest.raises(InputError, match=r"Write max_length: 128"):
        check_task(task_from_mapping(data, base_directory=folder))


def test_a_chat_template_is_taken_into_the_task(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "chat")
    (folder / "short.jinja").write_text("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    turns = [[{"role": "user", "content": "1+1="}, {"role": "assistant", "content": str(n)}] for n in range(8)]
    (folder / "train.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    task = task_from_mapping(tiny_data(dataset={"chat_template": "short.jinja"}), base_directory=folder)
    assert str(task.dataset.chat_template).startswith("{% for m in messages %}")
    assert read_inputs(task).tokenizer.chat_template == task.dataset.chat_template


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_an_architecture_that_is_not_supported_is_one_short_problem(
    folder: Path, tmp_path: Path, has_tokenizer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer is no second one, and no code of its folder is asked for: the question would wait for an answer."""
    shutil.copytree(folder / "model", tmp_path / "model")
    config: dict[str, Any] = {"architectures": ["RWForCausalLM"], "model_type": "RefinedWebModel"}
    config |= {"auto_map": {"AutoConfig": "configuration_RW.RWConfig"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RWTokenizer"}))
    if not has_tokenizer:
        (tmp_path / "model" / "tokenizer.json").unlink()
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question to the user"))
    with pytest.raises(InputError) as caught:
        read_inputs(tiny_task(folder, model_name_or_path=str(tmp_path / "model")))
    (problem,) = caught.value.problems
    assert problem.found.startswith("RWForCausalLM, which transformers ")
    assert len(problem.allowed) < 200 + len(problem.found)
    assert "\n" not in str(problem)


def test_what_the_objective_refuses_of_the_rows_is_listed_with_the_others(folder: Path) -> None:
    known = Problem(where="num_gpus", found="2", allowed="1", hint="Write 1.")
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(20)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    dataset = {"train": "pairs.jsonl", "validation": 0.5, "on_long_rows": "split"}
    task = tiny_task(folder, objective="dpo", dataset=dataset)
    with pytest.raises(InputError) as caught:
        read_inputs(task, also=[known])
    assert where(caught.value) == ["num_gpus", "dataset.on_long_rows"]
