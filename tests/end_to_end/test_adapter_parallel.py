"""A base model divided over processes gives the bits of one process, whatever stops it and wherever it goes on."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, RankLostError
from cohort.engine.check import check_task
from cohort.engine.recovery import train_despite_losses
from cohort.engine.train.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.parallel.rank_process import RankProcess
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, token_budget=40)
DIVIDED: dict[str, Any] = {
    "strategy": "adapter_parallel",
    "evaluation": {"metric": "exact_match", "max_new_tokens": 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    write_tiny_model(folder / "model", num_layers=4)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    """Of one process, which divides nothing."""
    tune(tiny_task(folder, **DIVIDED), folder / "one", options=OPTIONS)
    return result_of(folder / "one")


def result_of(run: Path) -> Outcome:
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_divided_layers_give_the_bits_of_one_process(
    folder: Path, tmp_path: Path, expected: Outcome, num_ranks: int
) -> None:
    watcher = Interrupting()
    tune(
        tiny_task(folder, **DIVIDED),
        tmp_path / "run",
        options=replace(OPTIONS, num_ranks=num_ranks),
        watcher=watcher,
    )
    assert result_of(tmp_path / "run") == expected
    assert any(f"4 of 4 layers are divided over {num_ranks} processes" in note for note in watcher.notes)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert reader.facts().memory.divided_layers == 4


def test_a_killed_rank_ends_the_run_and_it_goes_on_alone_with_another_strategy(
    folder: Path, tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)

    class Killing(Interrupting):
        def update(self, progress: RunProgress) -> None:
            done = sum(trial.steps_done for trial in progress.trials)
            if done >= 9 and started[0]._process.poll() is None:
                os.kill(started[0].process_id, signal.SIGKILL)

    run = tmp_path / "run"
    with pytest.raises(RankLostError, match=r"rank 1 \(process \d+\) ended by SIGKILL"):
        tune(tiny_task(folder, **DIVIDED), run, options=replace(OPTIONS, num_ranks=2), watcher=Killing())
    text = (run / "task.yaml").read_text(encoding="utf-8")
    assert "strategy: adapter_parallel" in text
    (run / "task.yaml").write_text(text.replace("strategy: adapter_parallel", "strategy: replicas"), encoding="utf-8")
    resume(run, options=OPTIONS)
    assert result_of(run) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (4, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(
    folder: Path, tmp_path: Path, expected: Outcome, before: int, after: int
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(
            tiny_task(folder, **DIVIDED),
            run,
            options=replace(OPTIONS, num_ranks=before),
            watcher=Interrupting(4),
        )
    resume(run, options=replace(OPTIONS, num_ranks=after))
    assert result_of(run) == expected


def test_what_does_not_go_together_or_makes_no_difference_is_said(folder: Path) -> None:
    notes = check_task(tiny_task(folder, **DIVIDED)).notes
    assert "strategy: one GPU divides nothing, so every GPU has the whole model" in notes
    with pytest.raises(InputError, match="divides the layers over the GPUs"):
        check_task(tiny_task(folder, **DIVIDED, memory={"host_streamed_layers": 3}))


@pytest.mark.slow
def test_a_run_that_lost_a_rank_goes_on_by_itself(
    folder: Path, tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)

    class Killing(Interrupting):
        def update(self, progress: RunProgress) -> None:
            if sum(trial.steps_done for trial in progress.trials) >= 9 and len(started) == 1:
                os.kill(started[0].process_id, signal.SIGKILL)

    options, run, watcher = replace(OPTIONS, num_ranks=2), tmp_path / "run", Killing()
    task = tiny_task(folder, **DIVIDED)
    train_despite_losses(
        lambda: tune(task, run, options=options, watcher=watcher), run, watcher=watcher, options=options
    )
    assert result_of(run) == expected
    assert len(started) == 2
    assert any("going on with 2 ranks from the last checkpoint" in note for note in watcher.notes)


def test_a_rank_that_cannot_read_its_peers_memory_trains_to_the_same_bits_and_says_so(
    folder: Path, tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: object) -> Any:
        raise PermissionError("not permitted")

    # in this process, which is rank 0; the other one reads its memory as always
    monkeypatch.setattr("cohort.parallel.peer_source.open_bytes", refuse)
    watcher = Interrupting()
    tune(tiny_task(folder, **DIVIDED), tmp_path / "run", options=replace(OPTIONS, num_ranks=2), watcher=watcher)
    assert result_of(tmp_path / "run") == expected
    said = [note for note in watcher.notes if "cannot read the memory" in note]
    assert len(said) == 1
    assert said[0].startswith("warning: rank 0 cannot read the memory of rank 1 (not permitted), so rank 1 sends")
