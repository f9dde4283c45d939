"""The GSM8K example: within its limits, and it runs where its data are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.engine.tune import tune
from cohort.prepare.inputs import read_inputs
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.tasks.loading import TaskFile, load_task
from cohort.tasks.trial_values import default_values
from tests.conftest import REPOSITORY

TASK = REPOSITORY / "examples" / "gsm8k" / "task.yaml"
SHARED = REPOSITORY.parent / "shared"

pytestmark = pytest.mark.skipif(
    not (SHARED / "data" / "sft" / "gsm8k_train.jsonl").is_file()
    or not (SHARED / "models" / "stories260K" / "hf").is_dir(),
    reason="the GSM8K rows and the small model are not in ../shared; examples/gsm8k/README.md says where to get rows",
)


@pytest.fixture(scope="module")
def task() -> TaskFile:
    return load_task(TASK, ["--num_gpus", "0"])


def test_it_keeps_its_limits(task: TaskFile) -> None:
    inputs = read_inputs(task)
    assert inputs.num_trials <= 24
    assert len(inputs.data.train) == 1000
    assert int(inputs.data.train.lengths.max()) <= 512
    assert inputs.data.report.counts["too_long"] > 0
    assert not inputs.data.report.is_chat
    assert task.evaluation.metric == "loss"
    # the answer alone is trained, and its end
    prompt = inputs.data.train.prompts[0]
    assert prompt.startswith("Question: ")
    assert prompt.endswith("\nAnswer:\n")


def test_the_default_hyperparameters_are_among_the_trials(task: TaskFile) -> None:
    default = default_values(task)
    for name, parameter in task.search.space.items():
        if name != "lora_alpha":
            assert default[name] in getattr(parameter, "values", ()), name
    assert default["lora_alpha"] == 2 * float(default["r"])


def test_it_runs(tmp_path: Path) -> None:
    short = ["--training.max_steps=6", "--search.space.learning_rate=[5e-3]", "--search.space.batch_size=[2]"]
    rows = ["--dataset.max_train_samples=40", "--evaluation.max_examples=4", "--num_gpus=0"]
    # of 100 rows each, as all rows are read and tokenised above
    for part, name in (("train", "gsm8k_train.jsonl"), ("validation", "gsm8k_test.jsonl")):
        lines = (SHARED / "data" / "sft" / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:100]), encoding="utf-8")
        rows.append(f"--dataset.{part}={tmp_path / name}")
    # not on all rows at the end: of half a million tokens
    rows.append("--evaluation.finalists=0")
    tune(load_task(TASK, [*short, *rows]), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        results = read_results(reader)
    assert results.best is not None
    assert results.best.best_value is not None
    assert results.base_value is not None
    assert results.best.best_value < results.base_value
