"""Metrics of a run: several at once from one generation, functions of the user, choices, and a broken base model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.metrics import MetricFailedError
from cohort.prepare.inputs import read_inputs
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import RunPlaces
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.runs.task_of_run import load_run_task
from cohort.serving import generate as serving
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import Interrupting, outcome_of, tiny_task, write_inputs

# few and short trials: what is measured counts here, not what is learnt
SMALL: dict[str, Any] = {"search": {"space": {"learning_rate": [1e-3, 3e-2]}}, "training": {"max_steps": 3}}

FUNCTION = """
calls = []


def length(prediction, row):
    assert set(row) >= {"prompt", "completion", "choices", "level"}, row
    return abs(len(prediction) - row["level"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("inputs"))
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    with (folder / "train.jsonl").open("w") as stream:
        for number, row in enumerate(rows):
            others = [row["completion"], f"{row['completion']}{number}"]
            stream.write(json.dumps({**row, "choices": others, "level": number}) + "\n")
    (folder / "mine.py").write_text(FUNCTION)
    return folder


def test_several_metrics_share_one_generation_and_one_selects(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_requests: list[int] = []
    stream = serving.stream

    def counted(decoder: Any, requests: Any, **keys: Any) -> Any:
        num_requests.append(len(requests))
        return stream(decoder, requests, **keys)

    monkeypatch.setattr("cohort.ranks.local_executor.stream", counted)
    alone = {"metric": "mine:length", "greater_is_better": False, "max_new_tokens": 3}
    together = {**alone, "metrics": ["exact_match", "contains", "token_f1", "number_match", "choice_accuracy"]}
    counts = {}
    for name, evaluation in (("alone", alone), ("together", together)):
        num_requests.clear()
        tune(tiny_task(folder, evaluation=evaluation, **SMALL), tmp_path / name)
        counts[name] = sum(num_requests)
    assert counts["alone"] == counts["together"] > 0
    with RunReader.open(tmp_path / "together" / "run.db") as reader:
        facts, results, measured = reader.facts(), read_results(reader), reader.log.evaluations()
    names = {"length", "exact_match", "contains", "token_f1", "number_match", "choice_accuracy"}
    assert all(set(found.metrics) == names for found in measured)
    assert set(facts.base_metrics or {}) == {"loss", *names}
    assert results.metric.name == "length"
    assert not results.metric.maximize
    assert results.best is not None
    assert results.best.best_value == min(found.metrics["length"] for found in measured)
    assert set(facts.inputs.metric_functions or {}) == {"length"}
    # measuring more changes neither weights nor losses
    before, after = outcome_of(tmp_path / "alone"), outcome_of(tmp_path / "together")
    assert before["steps"] == after["steps"]
    assert before["adapters"] == after["adapters"]


def test_choices_are_compared_without_generating(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.ranks.local_executor.stream", None)
    tune(tiny_task(folder, evaluation={"metric": "choice_accuracy"}, **SMALL), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        measured, results = reader.log.evaluations(), read_results(reader)
    assert all(found.metrics["choice_accuracy"] in (0, 0.25, 0.5, 0.75, 1) for found in measured)
    assert results.metric.maximize


@pytest.mark.parametrize(
    ("evaluation", "why"),
    [
        ({"metric": "mine:missing"}, "no missing in mine.py"),
        ({"metric": "mine.py:bad"}, r"the metric bad .*raised ZeroDivisionError.*; row .*train.jsonl:\d+, prediction"),
        ({"metrics": ["nowhere.py:x"]}, r"evaluation.metrics.*'nowhere.py', which does not exist"),
        ({"metric": "exact-match"}, "Did you mean exact_match?"),
        ({"metric": ["exact_match"]}, "further metrics go to evaluation.metrics"),
        ({"metrics": ["contains", "contains"]}, "contains twice"),
        ({"metric": "mine:length", "metrics": ["other:length"]}, "length twice"),
        ({"metric": "loss", "greater_is_better": False}, "whose direction is known"),
        ({"normalize": True}, "normalize with loss, which does not read it"),
        ({"metric": "number_match", "normalize": True}, "allowed: normalize with exact_match, contains"),
        ({"metric": "exact_match", "answer_pattern": "(a"}, "missing \\)"),
        ({"metric": "exact_match", "answer_pattern": "number"}, "number_match"),
        ({"metric": "mine:length", "answer_pattern": "a"}, "answer_pattern with length"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(folder: Path, evaluation: dict[str, Any], why: str) -> None:
    with (folder / "mine.py").open("w") as stream:
        stream.write(FUNCTION + "\n\ndef bad(prediction, row):\n    return 1 / len(prediction)\n")
    with pytest.raises(InputError, match=why):
        read_inputs(tiny_task(folder, evaluation=evaluation))


def test_a_function_that_fails_later_ends_no_trial_and_the_run_goes_on_once_it_is_corrected(
    folder: Path, tmp_path: Path
) -> None:
    options = RunOptions(checkpoint_seconds=0.0)
    flag = tmp_path / "fail"
    code = f"""
import os
import shutil
calls = []


def later(prediction, row):
    calls.append(1)
    # the checks and the base model come first
    if len(calls) > 10 and os.path.exists({str(flag)!r}):
        raise ValueError("no network")
    return len(prediction)
"""
    (folder / "later.py").write_text(code)
    flag.touch()
    task = tiny_task(folder, evaluation={"metric": "later:later", "max_new_tokens": 2}, **SMALL)
    with pytest.raises(
        MetricFailedError,
        match=r"the metric later .*ValueError: no network .*; row .*prediction.*correct the function and resume",
    ):
        tune(task, tmp_path / "run", options=options)
    os.remove(flag)
    (folder / "later.py").write_text(code.replace("len(prediction)\n", "len(prediction) + 0\n"))
    watcher = Interrupting()
    resume(tmp_path / "run", watcher=watcher, options=options)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert all(trial.status.value != "failed" for trial in reader.trials())
        assert read_results(reader).best is not None
    assert any("the metric function later changed since the run began" in note for note in watcher.notes)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.nan, "{name}: found NaN or infinite weights"),
        (3e38, "validation loss is (nan|inf) before any training: all of its weights are finite"),
    ],
)
def test_a_broken_base_model_is_named_before_training(folder: Path, tmp_path: Path, value: float, why: str) -> None:
    broken = tmp_path / "inputs"
    shutil.copytree(folder / "model", broken)
    weights = load_file(broken / "model.safetensors")
    name = "model.norm.weight"
    # large numbers overflow where two of them meet
    for changed in [name] if value != value else [name, "lm_head.weight"]:
        weights[changed][:] = value
    save_file(weights, broken / "model.safetensors")
    data = {"model_name_or_path": str(broken), **SMALL}
    with pytest.raises(InputError, match=why.format(name=name)):
        tune(tiny_task(folder, **data), tmp_path / "run")


def test_a_function_file_moves_together_with_its_run(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(folder, first / "inputs")
    task = tiny_task(first / "inputs", evaluation={"metric": "mine:length", "metrics": ["exact_match"]})
    assert task.evaluation.metric == f"{first / 'inputs' / 'mine.py'}:length"
    directory = RunDirectory.create(first / "run")
    directory.task_file.write_text(task.resolved_yaml())
    facts = RunFacts(places=RunPlaces(run_directory=str(first / "run")))
    first.rename(second)
    moved = load_run_task(RunDirectory(second / "run"), facts=facts)
    assert moved.evaluation.metric == f"{second / 'inputs' / 'mine.py'}:length"
    assert moved.evaluation.metrics == ("exact_match",)
    (second / "inputs" / "mine.py").unlink()
    with pytest.raises(InputError, match=r"mine.py:length', which does not exist.*--evaluation.metric PATH"):
        load_run_task(RunDirectory(second / "run"), facts=facts)


def from_python(prediction: str, row: Any) -> float:
    return float(len(prediction))


def test_python_gives_functions_that_a_resume_finds_again(folder: Path) -> None:
    def task_with(metric: Any) -> TaskFile:
        sections: Any = {"evaluation": {"metric": metric}, "training": {"max_steps": 2}, "num_gpus": 0}
        return Task(model=folder / "model", dataset=str(folder / "train.jsonl"), **sections).file

    task = task_with(from_python)
    assert task.evaluation.metric.endswith(":from_python")
    assert read_inputs(task).metric_functions.keys() == {"from_python"}
    with pytest.raises(InputError, match=r"evaluation.metric: found <function .*<lambda>.*Define it with def"):
        task_with(lambda prediction, row: 1)
