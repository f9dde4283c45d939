"""A base model divided over processes gives the bits of one process, whatever stops it and wherever it goes on."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError, RankLostError
from cohort.engine.recovery import train_despite_losses
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.planning.check import check_task
from cohort.ranks.rank_process import RankProcess
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.several_ranks.outcomes import result_of
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, tiny_task, write_inputs

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


class Killing(Interrupting):
    """Kills the first rank that was started, once the trials have done nine steps together."""

    def __init__(self, started: list[RankProcess]) -> None:
        super().__init__()
        self._started = started

    def update(self, progress: RunProgress) -> None:
        done = sum(trial.steps_done for trial in progress.trials)
        if done >= 9 and len(self._started) == 1 and self._started[0]._process.poll() is None:
            os.kill(self._started[0].process_id, signal.SIGKILL)


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
    folder: Path, tmp_path: Path, expected: Outcome, started: list[RankProcess]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(RankLostError, match=r"rank 1 \(process \d+\) ended by SIGKILL"):
        tune(tiny_task(folder, **DIVIDED), run, options=replace(OPTIONS, num_ranks=2), watcher=Killing(started))
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
    folder: Path, tmp_path: Path, expected: Outcome, started: list[RankProcess]
) -> None:
    options, run, watcher = replace(OPTIONS, num_ranks=2), tmp_path / "run", Killing(started)
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
    def refuse(handle: object, **_: object) -> Any:
        raise PermissionError("not permitted")

    # in this process, which is rank 0; the other one reads its memory as always
    monkeypatch.setattr("cohort.ranks.peer_source.open_bytes", refuse)
    watcher = Interrupting()
    tune(tiny_task(folder, **DIVIDED), tmp_path / "run", options=replace(OPTIONS, num_ranks=2), watcher=watcher)
    assert result_of(tmp_path / "run") == expected
    said = [note for note in watcher.notes if "cannot read the memory" in note]
    assert len(said) == 1
    assert said[0].startswith("warning: rank 0 cannot read the memory of rank 1 (not permitted), so rank 1 sends")


# without dropout, so that passes are recorded, pulls and all
EXACT: dict[str, Any] = {"numerics": "exact", "strategy": "adapter_parallel", "lora": {"lora_dropout": 0.0}}
ON_GPUS = RunOptions(checkpoint_seconds=0.0, token_budget=2048)
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def on_one_gpu(folder: Path) -> Outcome:
    tune(tiny_task(folder, **EXACT, num_gpus=1), folder / "one-gpu", options=ON_GPUS)
    return result_of(folder / "one-gpu")


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("strategy", ["adapter_parallel", "replicas"])
def test_two_gpus_give_the_bits_of_one(folder: Path, tmp_path: Path, on_one_gpu: Outcome, strategy: str) -> None:
    """Exact numerics: which trials share a GPU, and whose memory the layers come from, changes no bit."""
    task = tiny_task(folder, **{**EXACT, "strategy": strategy}, num_gpus=2)
    tune(task, tmp_path / "run", options=ON_GPUS)
    assert result_of(tmp_path / "run") == on_one_gpu


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_that_is_killed_on_two_gpus_costs_no_bit(
    folder: Path, tmp_path: Path, on_one_gpu: Outcome, started: list[RankProcess], num_ranks: int
) -> None:
    run = tmp_path / "run"
    with pytest.raises(RankLostError, match=r"rank 1 \(process \d+\) ended by SIGKILL"):
        tune(tiny_task(folder, **EXACT, num_gpus=2), run, options=ON_GPUS, watcher=Killing(started))
    resume(run, options=replace(ON_GPUS, num_ranks=num_ranks))
    assert result_of(run) == on_one_gpu
