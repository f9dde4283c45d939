"""One task in several processes gives the bits of one process, whatever stops it and wherever it goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.core.errors import RankLostError
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.memory import budget
from cohort.ranks.rank_process import RankProcess
from cohort.report.writing import render_report
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.status import read_status
from cohort.training.executor import Executor
from cohort.training.launched_step import LaunchedStep
from cohort.training.optimizers.optimizer import UnfinishedUpdateError
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, token_budget=40)
TWO = replace(OPTIONS, num_ranks=2)
SECTIONS = {"evaluation": {"metric": "exact_match", "max_new_tokens": 3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    tune(tiny_task(folder, **SECTIONS), folder / "one", options=OPTIONS)
    return result_of(folder / "one")


def result_of(run: Path) -> Outcome:
    """Everything but the order of decisions: with twice the room, other trials warm up first."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[RankProcess]:
    """The ranks beside rank 0, as they are started."""
    started: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)
    return started


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_ranks_give_the_bits_of_one(
    folder: Path, tmp_path: Path, expected: Outcome, processes: list[RankProcess], num_ranks: int
) -> None:
    tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=replace(OPTIONS, num_ranks=num_ranks))
    assert result_of(tmp_path / "run") == expected
    assert len(processes) == num_ranks - 1
    # what each of them did is on record, for status and report
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        work, seconds = reader.log.rank_work(), reader.run_seconds()
        assert {record.rank for record in work} == set(range(num_ranks))
        assert all(0 <= record.start_seconds < record.end_seconds <= seconds + 1e-6 for record in work)
        trained = sum(step.num_tokens for step in reader.log.steps())
        assert sum(record.num_tokens for record in work) == trained
        assert f"process {num_ranks - 1} worked" in render_report(reader)
    assert [rank.rank for rank in read_status(RunDirectory(tmp_path / "run")).ranks] == list(range(num_ranks))
    assert all(process._process.poll() is not None for process in processes), "the other ranks end with the run"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_repeat_each_other(folder: Path, tmp_path: Path) -> None:
    """Its packs differ from those of one GPU, so only the trials and their steps are the same as there."""
    runs = [tmp_path / name for name in ("one", "two", "again")]
    for run, num_gpus in zip(runs, (1, 2, 2), strict=True):
        tune(tiny_task(folder, **SECTIONS, num_gpus=num_gpus), run, options=OPTIONS)
    one, two, again = map(outcome_of, runs)
    assert two == again
    assert two["steps"].keys() == one["steps"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicas", "pipeline"])
def test_trials_that_take_turns_and_one_that_overflows_have_the_bits_of_one_rank(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Trials are parked, move and come back, and one's loss is no number within a window."""
    sections = {**SECTIONS, "search": {"space": {"learning_rate": [1e-3, 3e-2, 1e30], "r": [2, 4]}}}
    tune(tiny_task(folder, **sections), tmp_path / "one", options=OPTIONS)
    expected = result_of(tmp_path / "one")
    assert any("non_finite" in decision for decision in expected["decisions"]), expected["decisions"]
    # one trial of six on each rank at a time
    monkeypatch.setattr(budget, "MOST_SLOTS", 1)
    tune(tiny_task(folder, strategy=strategy, **sections), tmp_path / "run", options=TWO)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert reader.facts().sizes.num_slots == 1
    assert result_of(tmp_path / "run") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(
    folder: Path, tmp_path: Path, expected: Outcome, before: int, after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(
            tiny_task(folder, **SECTIONS),
            tmp_path / "run",
            options=replace(OPTIONS, num_ranks=before),
            watcher=Interrupting(4),
        )
    resume(tmp_path / "run", options=replace(OPTIONS, num_ranks=after))
    assert result_of(tmp_path / "run") == expected


def test_a_killed_rank_ends_the_run_and_a_resume_gives_the_same_bits(
    folder: Path, tmp_path: Path, expected: Outcome, processes: list[RankProcess]
) -> None:
    class Killing(Interrupting):
        def update(self, progress: RunProgress) -> None:
            done = sum(trial.steps_done for trial in progress.trials)
            if done >= 9 and processes[0]._process.poll() is None:
                os.kill(processes[0].process_id, signal.SIGKILL)

    with pytest.raises(RankLostError, match=r"rank 1 \(process \d+\) ended by SIGKILL"):
        tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=TWO, watcher=Killing())
    resume(tmp_path / "run", options=OPTIONS)
    assert result_of(tmp_path / "run") == expected


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RuntimeError("a bad row"), marks=pytest.mark.slow),
        UnfinishedUpdateError("an optimizer step broke off"),
    ],
)
def test_an_error_within_a_window_costs_no_trial_a_bit(
    folder: Path, tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    step, calls = Executor.launch_step, []

    def failing(self: Executor, trial_ids: Sequence[int] | None = None) -> LaunchedStep:
        calls.append(trial_ids)
        # in the middle of the second window of rank 0, and again in the step by itself that follows
        if len(calls) in (5, 6):
            raise error
        return step(self, trial_ids)

    monkeypatch.setattr(Executor, "launch_step", failing)
    tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=TWO)
    assert result_of(tmp_path / "run") == expected
    assert len(calls) > 8
