"""Constraints, conditions and budgets of a search, from the task file to the proposals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cohort.cli.main import build_app
from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.engine.train.watching.progress import SilentWatcher
from cohort.engine.tune import RunOptions, resume, tune
from cohort.planning.check import check_task
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import results_json
from cohort.tasks.loading import load_task
from tests.end_to_end.tiny_tasks import outcome_of, tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


class TickingClock(ManualClock):
    """A second passes at each look, so that watchers get every step."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


class Noting(SilentWatcher):
    """Records progress and notes."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes.append(text)


CONSTRAINED: dict[str, Any] = {
    "lora": {"lora_alpha": 16},
    "search": {
        "space": {
            "r": [2, 4, 8],
            "lora_alpha": [4, 8],
            "lr_scheduler_type": ["constant", "cosine"],
            "warmup_ratio": {"values": [0.1, 0.2], "when": {"lr_scheduler_type": "cosine"}},
        },
        "constraints": ["lora_alpha >= 2 * r"],
    },
}


def test_check_shows_what_constraints_and_conditions_leave(folder: Path) -> None:
    report = check_task(tiny_task(folder, **CONSTRAINED))
    assert report.num_trials == 9
    assert "search.constraints leave 9 of 18 configurations" in report.notes
    assert (
        "search.space.warmup_ratio is searched when lr_scheduler_type is cosine; else warmup_ratio is 0" in report.notes
    )


@pytest.mark.parametrize(
    ("search", "note"),
    [
        (
            {"space": {"learning_rate": {"min": 1e-4, "max": 1e-2}}},
            "20 trials at first, then one for each that ends, 60",
        ),
        ({"space": {"r": [2, 4]}}, ""),
        ({"space": {"r": [2, 4]}, "first_trials": 1}, "1 trial at first, then one for each that ends, 2 at most"),
    ],
)
def test_check_says_how_many_trials_begin_and_how_many_come(folder: Path, search: dict[str, Any], note: str) -> None:
    report = check_task(tiny_task(folder, search={"sampler": "tpe", **search}))
    told = [text for text in report.notes if "at first" in text]
    assert len(told) == bool(note)
    assert not note or note in told[0]


def test_the_resolved_task_is_the_same_task(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, **CONSTRAINED)
    (tmp_path / "task.yaml").write_text(task.resolved_yaml())
    assert load_task(tmp_path / "task.yaml").model_dump() == task.model_dump()


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"constraints": ["lora_alpa >= r"]}, r"search\.constraints\[0\].*Did you mean lora_alpha\?"),
        ({"constraints": ["batch_size * gradient_accumulation <= 32"]}, "'gradient_accumulation' in"),
        ({"constraints": 3}, "allowed: a list of strings"),
        ({"space": {"r": {"values": [2], "when": {"rank": 3}}}}, r"search\.space\.r.*unknown key 'rank'"),
        ({"space": {"r": {"values": [2, 4]}}}, "values without when"),
        ({"space": {"r": {"values": [2], "min": 1, "when": {"batch_size": 2}}}}, "values together with min"),
        ({"first_trials": 4}, "first_trials with sampler: grid"),
        ({"max_gpu_hours": 1.5}, "max_gpu_hours with sampler: grid"),
        ({"space": {"r": {"low": 4, "max": 8}}}, r"search\.space\.r\.low: found the key 'low'.*Rename it: min\.$"),
        (
            {"space": {"r": {"choices": [4, 8]}}},
            r"search\.space\.r\.choices: found a list under the key 'choices'.*\{values: \[",
        ),
        (
            {"space": {"optim": {"categories": ["lion"], "when": {"r": 4}}, "r": [2, 4]}},
            r"search\.space\.optim\.categories: found a list under the key 'categories'",
        ),
    ],
)
def test_what_is_refused(folder: Path, search: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_task(folder, search=search)


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_constraints_that_nothing_meets_are_told_before_anything_runs(folder: Path, sampler: str) -> None:
    task = tiny_task(folder, search={"constraints": ["r > 100"], "sampler": sampler, "trials": 4})
    with pytest.raises(InputError, match=r"search\.constraints: found r > 100; allowed: constraints that some"):
        check_task(task)


SOME_ZERO = {"r": [4, 8], "batch_size": [1, 2, 3]}
RATE: dict[str, Any] = {"min": 1e-4, "max": 1e-2}


WITH_RATE = SOME_ZERO | {"learning_rate": RATE}


@pytest.mark.parametrize(
    ("sampler", "space", "num_guarded"),
    [("grid", SOME_ZERO, 2), ("tpe", SOME_ZERO, 2), ("random", WITH_RATE, 4), ("tpe", WITH_RATE, 4)],
)
def test_a_constraint_that_divides_by_zero_for_some_values_names_them(
    folder: Path, sampler: str, space: dict[str, Any], num_guarded: int
) -> None:
    search = {"constraints": ["r / (batch_size - 2) > 1"], "sampler": sampler, "trials": 4, "space": space}
    with pytest.raises(InputError) as caught:
        check_task(tiny_task(folder, search=search))
    told = "'r / (batch_size - 2) > 1', which cannot be worked out for batch_size = 2, r = 4 (division by zero)"
    assert "search.constraints: found " + told in str(caught.value)

    # another constraint may rule the value out, in any place
    search["constraints"] = ["r / (batch_size - 2) > 1", "batch_size != 2"]
    assert check_task(tiny_task(folder, search=search)).num_trials == num_guarded


def test_a_constraint_of_a_range_is_tried_for_many_draws(folder: Path) -> None:
    search: dict[str, Any] = {
        "constraints": ["r / (learning_rate // 0.001) > 1"],
        "sampler": "random",
        "trials": 4,
        "space": {"r": [4, 8], "learning_rate": RATE},
    }
    with pytest.raises(InputError, match=r"cannot be worked out for learning_rate = 0\.000\d+, r = [48] \("):
        check_task(tiny_task(folder, search=search))


REFILLED: dict[str, Any] = {
    "training": {"max_steps": 4},
    "search": {
        "sampler": "random",
        "trials": 9,
        "first_trials": 4,
        "space": {"learning_rate": {"min": 1e-4, "max": 3e-2}, "r": [2, 4]},
    },
}


def test_freed_slots_are_filled_with_random_trials_and_a_resume_proposes_the_same(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **REFILLED), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        positions = reader.log.proposal_positions()
        later = [entry for entry in reader.log.entries() if entry.position > positions[8]]
    assert len(positions) == 9
    assert positions[4] > 5, "the fifth came when others had done something"
    assert later

    stopping = tmp_path / "stopped"

    class Stopping:
        def update(self, progress: Any) -> None:
            if len(progress.trials) >= 7:
                raise KeyboardInterrupt

        def note(self, text: str) -> None: ...

    often = RunOptions(checkpoint_seconds=0.0, checkpoint_share=1e9)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, **REFILLED), stopping, options=often, watcher=Stopping(), clock=TickingClock())
    resume(stopping)
    assert outcome_of(stopping) == outcome_of(tmp_path / "run")


def test_no_trial_is_proposed_beyond_the_time_on_the_device(folder: Path, tmp_path: Path) -> None:
    search = {**REFILLED["search"], "max_gpu_hours": 1e-9}
    notes: list[str] = []
    tune(tiny_task(folder, **{**REFILLED, "search": search}), tmp_path / "run", watcher=Noting(notes))
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert len(reader.trials()) == 4
        results = read_results(reader)
    said = "4 of 9 trials were proposed when search.max_gpu_hours (1e-09) was used up"
    assert results.facts.search_ended == said
    assert results_json(results)["search_ended"] == said
    assert notes.count(said) == 1
    assert said in (tmp_path / "run" / "report.html").read_text()
    shown = CliRunner().invoke(build_app(), ["status", str(tmp_path / "run")])
    assert "4 of 9 trials were proposed" in shown.output


def test_a_search_that_time_did_not_end_says_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    search = {**REFILLED["search"], "max_gpu_hours": 1000}
    tune(tiny_task(folder, **{**REFILLED, "search": search}), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert len(reader.trials()) == 9
        assert read_results(reader).facts.search_ended is None
