"""How many validation rows trials are judged on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import SystemClock
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import tune
from cohort.planning.check import check_task
from cohort.prepare.preparation import prepare
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("planning"))
    write_rows(folder / "train.jsonl", count=80)
    return folder


class Listening:
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, progress: RunProgress) -> None:
        """Drop the snapshot."""

    def note(self, text: str) -> None:
        """Keep the line."""
        self.notes.append(text)


def test_a_small_task_is_judged_at_its_comparisons_on_few_rows_and_told_what_that_costs(
    folder: Path, tmp_path: Path
) -> None:
    # 8 steps of 2 rows against 3 evaluations: within 10 % not even one row would be affordable
    evaluation = {"max_examples": 128, "max_cost_fraction": 0.1}
    task = tiny_task(folder, dataset={"train": "train.jsonl", "validation": 0.5}, evaluation=evaluation)
    watcher = Listening()
    tune(task, tmp_path / "run", watcher=watcher)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts = reader.facts()
        steps = {found.step for found in reader.log.evaluations(facts.best_trial_id or 0)}
    assert facts.inputs.evaluation_rows == 8
    # the warm-up's end and the last; at 20 %, before the warm-up's end, nothing is compared
    assert steps == {2, 8}
    share = facts.inputs.evaluation_cost_fraction
    assert share is not None
    assert share > 0.1
    note = (
        f"evaluations use 8 of 40 validation rows, 2 times in a trial instead of 8; they cost {100 * share:.3g} % of "
        "the training compute, above max_cost_fraction 0.1: fewer would say too little"
    )
    assert [text for text in watcher.notes if text.startswith("evaluations")] == [note]
    assert note in check_task(task).notes


def test_a_plan_within_the_bound_is_not_worth_a_note(folder: Path) -> None:
    sections = {"evaluation": {"max_examples": 4, "max_cost_fraction": 100.0}}
    preparation = prepare(tiny_task(folder, **sections), clock=SystemClock())
    assert len(preparation.evaluation_rows) == 4
    assert preparation.notes == ()


def test_evaluation_rows_follow_from_the_seed(folder: Path) -> None:
    data = {"train": "train.jsonl", "validation": 0.5}
    tasks = (
        tiny_task(
            folder, dataset=data, evaluation={"max_examples": 40, "max_cost_fraction": 0.1}, training={"seed": seed}
        )
        for seed in (0, 0, 1)
    )
    one, again, other = (prepare(task, clock=SystemClock()).evaluation_rows for task in tasks)
    assert len(one) == 8
    assert one == again
    assert one != other
