"""Any number in a task file is refused with its key and range, or accepted and then recorded as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.record_facts import task_facts
from cohort.prepare.trials import objective_metric
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from cohort.tasks.hyperparameters import SEARCHABLE
from cohort.tasks.loading import load_task, task_from_mapping
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS
from tests.end_to_end.tiny_tasks import tiny_data
from tests.training.small_models import random_rows

NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, True, "1e30", "3"),
    *(0.1, 0.5, 0.95, 1.0, 2.5, -0.1, -0.0, 5e-324, 1e-9, 1e9, 1e10, 1e30, 1.7e308, math.inf, -math.inf, math.nan),
)
SOME_NUMBERS = (0, 1, 2, -1, 2**63, 10**400, True, "1e30", 0.1, 5e-324, 1e9, 1e30, math.inf, math.nan)
BOUNDS = ({"minimum", "exclusiveMinimum", "ge", "gt"}, {"maximum", "exclusiveMaximum", "le", "lt"})
ROWS = random_rows(20)
# numbers that other values decide about as well: what they say is not their own range
CONTEXT: Mapping[str, Mapping[str, Any]] = {
    "dataset.split_overlap": {"dataset.on_long_rows": "split"},
    "search.first_trials": {"search.sampler": "tpe"},
    "search.max_gpu_hours": {"search.sampler": "tpe"},
    "training.num_train_epochs": {"training.max_steps": None},
    **{
        f"training.lr_scheduler_kwargs.{name}": {"training.lr_scheduler_type": schedule, **others}
        for schedule, others, names in (
            ("polynomial", {}, ("lr_end", "power")),
            ("inverse_sqrt", {}, ("timescale",)),
            ("cosine_with_restarts", {}, ("num_cycles",)),
            ("cosine_warmup_with_min_lr", {}, ("min_lr", "min_lr_rate")),
            ("cosine_warmup_with_min_lr", {"training.lr_scheduler_kwargs.min_lr_rate": 0.1}, ("warmup_lr_rate",)),
            (
                "warmup_stable_decay",
                {"training.lr_scheduler_kwargs.num_decay_steps": 2},
                ("min_lr_ratio", "num_decay_steps", "num_stable_steps"),
            ),
        )
        for name in names
    },
}


def numeric_keys(schema: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the schemas of numbers by dotted key; ``[]`` is an element, ``{}`` a value of a mapping."""
    found: dict[str, list[dict[str, Any]]] = {}

    def walk(node: dict[str, Any], key: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        types = node.get("type", [])
        if {"number", "integer"} & set([types] if isinstance(types, str) else types):
            found.setdefault(key, []).append(node)
        for choice in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            walk(choice, key)
        for name, entry in node.get("properties", {}).items():
            walk(entry, f"{key}.{name}" if key else name)
        if isinstance(node.get("items"), dict):
            walk(node["items"], f"{key}.[]")
        if isinstance(node.get("additionalProperties"), dict):
            walk(node["additionalProperties"], f"{key}.{{}}")

    walk(schema, "")
    return found


KEYS = {
    key: nodes
    for key, nodes in numeric_keys(TaskFile.model_json_schema()).items()
    # values of the space are those of its hyperparameters, which are walked below; bytes have units
    if not key.startswith(("search.space", "memory.limit", "rewards.memory_limit"))
}


def test_every_number_of_the_schema_has_both_bounds() -> None:
    assert len(KEYS) > 50
    # layers by number come alone or in a list
    # and a list of weights has a check of its own
    alone = {"lora.layers_to_transform", "dataset.validation", "dataset.weights.[]"}
    for key, nodes in KEYS.items():
        for node in nodes:
            assert key in alone or all(BOUNDS[side] & set(node) for side in (0, 1)), (key, node)


def written(key: str, value: object) -> dict[str, Any]:
    """Return a task with ``value`` at a dotted key."""
    data = tiny_data(early_exit={}, search={"space": {"learning_rate": [1e-3, 1e-2]}})
    if key.startswith("objective."):
        name = key.rpartition(".")[2]
        readers = [entry for entry in OBJECTIVE_DECLARATIONS.built_in() if name in entry.values]
        reader = next((entry for entry in readers if entry.name == "dpo"), readers[0])
        data["objective"] = {"type": reader.name}
        if reader.samples_answers:
            data["rewards"] = "exact_match"
    if key.startswith("rewards."):
        data["objective"], data["rewards"] = "grpo", {"functions": ["exact_match"]}
        if key.endswith(".weight"):
            # the second, so that a weight of 0 is not the only one
            data["rewards"]["functions"].append({"function": "format", "weight": value})
            return data
        if key.endswith(".turns"):
            # of the one function, which replies
            data["rewards"] = [{"function": "replying:reply", "turns": value}]
            return data
    for place, entry in {**CONTEXT.get(key, {}), key: value}.items():
        if place.startswith("dataset.train"):
            data["dataset"]["train"] = [{"path": "train.jsonl", "weight": entry}]
            continue
        *sections, name = place.removesuffix(".[]").removesuffix(".{}").split(".")
        section = data
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = {"down_proj": entry} if place.endswith("{}") else [entry] if place.endswith("[]") else entry
    if key == "lora.use_bdlora.nblocks":
        data["lora"]["rank_pattern"] = {}
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "model").mkdir()
    (folder / "train.jsonl").touch()
    return folder


def checked(data: dict[str, Any], folder: Path, *, key: str, value: object) -> TaskFile | None:
    """Return the task; None where it is refused, by an error that names the key, what was found and the range."""
    try:
        return task_from_mapping(data, base_directory=folder, name="task.yaml")
    except InputError as error:
        problems = error.problems
    name = key.removesuffix(".[]").removesuffix(".{}").rpartition(".")[2]
    own = [problem for problem in problems if name in map(str, problem.where.key)]
    assert own, (key, value, problems)
    # 2.0 for a count is 2; and where a list is expected, a value is in it
    as_count = repr(int(value)) if isinstance(value, float) and value.is_integer() else ""
    shown = (repr(value)[:100], as_count, f"{value:g}" if isinstance(value, float) else "")
    for problem in own:
        assert any(text and text in problem.found for text in shown), problem
        # lr_end has to be below another number
        has_range = any(letter.isdigit() for letter in problem.allowed) or "below every" in problem.allowed
        assert has_range or "null" in problem.allowed, problem
        assert problem.hint
    return None


def assert_recorded(task: TaskFile, folder: Path) -> None:
    """Check that the task, and the trials it leads to, are the same once they were written and read."""
    copy = folder / "copy.yaml"
    copy.write_text(task.resolved_yaml())
    assert load_task(copy).model_dump() == task.model_dump()
    proposals = TrialProposals(task, ROWS)
    records = [trial.record() for trial in proposals.first]
    database = folder / "run.db"
    database.unlink(missing_ok=True)
    store = RunStore.create(database, metric=objective_metric(task), clock=ManualClock())
    try:
        store.add_trials(records)
        store.set_facts(task=task_facts(task, proposals.first, num_trials=len(records)))
    finally:
        store.close()
    with RunReader.open(database) as reader:
        found = reader.trials()
        assert [trial.parameters for trial in found] == [record.parameters for record in records]
        assert [trial.planned_steps for trial in found] == [record.planned_steps for record in records]
        assert reader.facts().task.document == task.model_dump(mode="json")


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_number_is_refused_or_recorded(folder: Path, key: str) -> None:
    accepted: dict[type, list[tuple[Any, TaskFile]]] = {}
    for value in NUMBERS:
        task = checked(written(key, value), folder, key=key, value=value)
        if task is not None:
            accepted.setdefault(type(value), []).append((value, task))
    assert accepted, f"{key}: no number at all is accepted"
    for of_type in accepted.values():
        of_type.sort(key=lambda entry: float(entry[0]))
        # what a file can hold, a record can: the ends of each kind
        for value, task in {id(task): (value, task) for value, task in (of_type[0], of_type[-1])}.values():
            # no sampler is to draw ten thousand trials here; and three blocks do not divide a rank of 16, which is
            # said where the model is known
            if key != "search.trials" and not (key.endswith("nblocks") and 16 % value):
                assert_recorded(task, folder)


def spaces(name: str, value: object) -> Iterator[tuple[str, Any]]:
    yield "alone", value
    yield "list", [value]
    yield "min", {"min": value, "max": 0.3 if SEARCHABLE[name].field.kind is float else 3, "num": 2}
    yield "max", {"min": 0.1 if SEARCHABLE[name].field.kind is float else 1, "max": value, "num": 2}
    yield "step", {"min": 0.1 if SEARCHABLE[name].field.kind is float else 1, "max": 3, "step": value}
    yield "num", {"min": 0.1 if SEARCHABLE[name].field.kind is float else 1, "max": 3, "num": value}
    yield "when", {"values": [value], "when": {name: [value]}}


@pytest.mark.parametrize("name", ["learning_rate", "r", "lora_alpha", "seed", "batch_size", "num_train_epochs"])
def test_a_number_of_the_search_space_is_refused_or_recorded(folder: Path, name: str) -> None:
    accepted: dict[str, list[TaskFile]] = {}
    for value in SOME_NUMBERS:
        for form, entry in spaces(name, value):
            data = tiny_data(early_exit={}, search={"space": {name: entry}})
            data["training"] = {"batch_size": 2}
            task = checked(data, folder, key=f"search.space.{name}", value=value) if form in ("alone", "list") else None
            if form not in ("alone", "list"):
                with suppress(InputError):
                    task = task_from_mapping(data, base_directory=folder)
            if task is not None:
                accepted.setdefault(form, []).append(task)
    for tasks in accepted.values():
        for task in tasks[:: max(1, len(tasks) - 1)]:
            assert_recorded_if_it_can_be_planned(task, folder)


def assert_recorded_if_it_can_be_planned(task: TaskFile, folder: Path) -> None:
    try:
        task.search_space()
    except InputError:
        # one parameter may be right and not go with the others
        return
    assert_recorded(task, folder)


@settings(max_examples=25, deadline=None)
@given(key=st.sampled_from(sorted(KEYS)), value=st.one_of(st.integers(), st.floats()))
def test_any_number_is_refused_or_written_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: float
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").touch()
    task = checked(written(key, value), folder, key=key, value=value)
    if task is not None:
        copy = folder / "copy.yaml"
        copy.write_text(task.resolved_yaml())
        assert load_task(copy).model_dump() == task.model_dump()


@pytest.mark.parametrize("value", [np.int64(2**62), np.float64(1e30), np.float32(np.inf), 2**63, 10**400, math.nan])
def test_numbers_of_python_are_checked_as_those_of_files(tmp_path: Path, value: Any) -> None:
    rows = [{"prompt": "a", "completion": "b"}] * 4
    for section, key in (("training", "max_steps"), ("early_exit", "patience"), ("evaluation", "max_examples")):
        given_section: Any = {section: {key: value}}
        with pytest.raises(InputError) as caught:
            Task(model=str(tmp_path), dataset=rows, search_space={"learning_rate": [1e-4]}, **given_section)
        (problem,) = caught.value.problems
        assert problem.where.key == (section, key)
        assert problem.allowed.startswith("a whole number of at least 1, at most 1,000,000,000")


@pytest.mark.parametrize("text", ["9223372036854775808", "1e30", "-1", "0", ".inf", ".nan", "1e400", '"3"', "true"])
def test_numbers_of_the_command_line_are_checked_as_those_of_files(folder: Path, text: str) -> None:
    file = folder / "task.yaml"
    with file.open("w") as stream:
        YAML().dump(tiny_data(), stream)
    with pytest.raises(InputError) as caught:
        load_task(file, ["--training.max_steps", text])
    (problem,) = caught.value.problems
    assert "max_steps" in str(problem.where)
    assert "at most 1,000,000,000" in problem.allowed


@pytest.mark.parametrize("value", [0, -1, 24, 2**61, 10**30, 10**400, 1e30, math.inf, math.nan, True, "1e30", "9e9EiB"])
def test_bytes_are_refused_where_no_device_has_so_many(folder: Path, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        task_from_mapping(tiny_data(memory={"limit": value}), base_directory=folder)
    (problem,) = caught.value.problems
    assert problem.where.key == ("memory", "limit")
    assert "bytes with a unit such as 24GB" in problem.allowed


def test_a_range_of_too_many_steps_is_refused(folder: Path) -> None:
    for step in (5e-324, 1e-9):
        space = {"learning_rate": {"min": 0.1, "max": 0.3, "step": step}}
        with pytest.raises(InputError, match="at most 1,000,000 values"):
            task_from_mapping(tiny_data(search={"sampler": "random", "space": space}), base_directory=folder)
