"""Ranks that hold one model together: the stages of a pipeline give the bits of one process, shards its numbers.

Whatever stops a run, it goes on with any strategy and any number of ranks.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError, RankLostError
from cohort.core.memory_records import PassKind
from cohort.engine.recovery import train_despite_losses
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.planning.check import check_task
from cohort.ranks.calls import Reply
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.step_window import StepWindow
from cohort.runs.reader import RunReader
from cohort.tasks.task_file import TaskFile
from tests.cli.tiny_task import write_tiny_model
from tests.conftest import REPOSITORY
from tests.end_to_end.several_ranks.outcomes import result_of
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_task, write_inputs
from tests.support.no_triton import use_no_triton

OPTIONS = RunOptions(checkpoint_seconds=0.0, token_budget=40)
TWO = replace(OPTIONS, num_ranks=2)
# sums over ranks are added in another order: as one rounding of float32 in sums of this size, over 8 steps of AdamW,
# which makes a step of the learning rate's size of the rounding of a gradient near zero
OF_LOSSES, OF_NORMS = 1e-4, 2e-3


def task_of(folder: Path, **sections: Any) -> TaskFile:
    """Return a task whose evaluations generate answers as well."""
    return tiny_task(folder, **{"evaluation": {"metric": "exact_match", "max_new_tokens": 3}, **sections})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    write_tiny_model(folder / "model", num_layers=4, num_heads=8, num_kv_heads=4)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    tune(task_of(folder), folder / "one", options=OPTIONS)
    return result_of(folder / "one")


def require_near(run: Path, expected: Outcome) -> None:
    """Compare with the numbers of one process, and the same trials, steps and winner."""
    found = result_of(run)
    assert found["steps"].keys() == expected["steps"].keys()
    for key, (loss, norm, rate) in expected["steps"].items():
        own_loss, own_norm, own_rate = found["steps"][key]
        assert float(own_loss) == pytest.approx(float(loss), rel=OF_LOSSES), key
        assert float(own_norm) == pytest.approx(float(norm), rel=OF_NORMS), key
        assert own_rate == rate
    assert found["best"] == expected["best"]


def with_strategy(run: Path, strategy: str) -> None:
    """Write another strategy into the task of a run."""
    path = run / "task.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("strategy:") for line in lines)
    changed = [f"strategy: {strategy}" if line.startswith("strategy:") else line for line in lines]
    path.write_text("\n".join(changed) + "\n", encoding="utf-8")


def is_alive(process_id: int) -> bool:
    """Return whether a process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Killing(Interrupting):
    """Kills the last of the ranks that were started once, after so many steps."""

    def __init__(self, started: list[RankProcess], *, at: int) -> None:
        super().__init__()
        self._started, self._at = started, at

    def update(self, progress: RunProgress) -> None:
        if sum(trial.steps_done for trial in progress.trials) >= self._at and len(self._started) == 2:
            os.kill(self._started[1].process_id, signal.SIGKILL)


def test_a_killed_stage_ends_the_run_and_a_resume_gives_the_bits_of_one_process(
    folder: Path, tmp_path: Path, expected: Outcome, started: list[RankProcess]
) -> None:
    run, watcher = tmp_path / "run", Killing(started, at=9)
    with pytest.raises(RankLostError, match=r"rank \d .*go on with `cohort resume`"):
        # windows of the solver as well, whose process ends with the run
        tune(task_of(folder, strategy="pipeline", microbatches="solver"), run, options=TWO, watcher=watcher)
    assert "strategy: pipeline; 2 processes hold 2 + 2 layers" in " ".join(watcher.notes)
    assert all(process._process.poll() is not None for process in started), "the others end with the one that is lost"
    with RunReader.open(run / "run.db") as reader:
        assert (reader.facts().sizes.rank_group, reader.facts().sizes.num_ranks) == ("pipeline", 2)
    resume(run, options=OPTIONS)
    assert result_of(run) == expected


# tells its ranks and dies in the middle of the run
DYING = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.end_to_end.several_ranks.test_one_model_on_several_ranks import TWO, Interrupting, task_of, tune

class Dying(Interrupting):
    def update(self, progress):
        if sum(trial.steps_done for trial in progress.trials) >= 9:
            listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid="], capture_output=True, text=True)
            print(*listed.stdout.split(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

tune(task_of(Path(sys.argv[1]), strategy=sys.argv[3]), sys.argv[2], options=TWO, watcher=Dying())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "num_ranks"), [("adapter_parallel", 1), ("pipeline", 2), ("tensor", 2)])
def test_ranks_end_with_a_killed_head_and_the_run_goes_on(
    folder: Path, tmp_path: Path, expected: Outcome, strategy: str, num_ranks: int
) -> None:
    run = tmp_path / "run"
    head = subprocess.run(
        [sys.executable, "-c", DYING, str(folder), str(run), strategy],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [REPOSITORY / "src", REPOSITORY, *sys.path]))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert head.returncode == -signal.SIGKILL
    # with the process that listed them
    ranks = [int(word) for word in head.stdout.split()]
    assert len(ranks) == num_ranks + 1
    deadline = time.monotonic() + 60
    while any(is_alive(process_id) for process_id in ranks):
        assert time.monotonic() < deadline, "ranks end with the process that commands them"
        time.sleep(0.02)
    resume(run, options=TWO)
    if strategy == "tensor":
        require_near(run, expected)
    else:
        assert result_of(run) == expected


def test_a_run_of_shards_goes_on_in_one_process(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(task_of(folder, strategy="tensor"), run, options=TWO, watcher=Interrupting(12))
    resume(run, options=OPTIONS)
    require_near(run, expected)


@pytest.mark.slow
def test_a_killed_shard_ends_the_run_and_half_of_the_budget_is_kept_after_a_shortage(
    folder: Path, tmp_path: Path, expected: Outcome, started: list[RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, task = tmp_path / "run", task_of(folder, strategy="tensor")
    with pytest.raises(RankLostError, match=r"rank \d"):
        tune(task, run, options=TWO, watcher=Killing(started, at=9))
    # as if one rank had answered its next windows with a shortage of memory
    answers = RankProcess.answer

    def short(self: RankProcess) -> Reply:
        reply = answers(self)
        is_window = isinstance(reply.value, StepWindow)
        if is_window and self.rank == 1 and len(started) == 4:
            return Reply(error=torch.OutOfMemoryError("CUDA out of memory"))
        return reply

    monkeypatch.setattr(RankProcess, "answer", short)
    with pytest.raises(RankLostError, match=r"rank 1 failed alone in run \(OutOfMemoryError"):
        resume(run, options=TWO)
    with RunReader.open(run / "run.db") as reader:
        assert reader.facts().passes.token_budgets == {PassKind.TRAIN: 20, PassKind.EVALUATE: 80}
    resume(run, options=TWO)
    require_near(run, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "microbatches"), [(2, "solver"), (3, "greedy"), (4, "greedy"), (4, "solver")])
def test_stages_give_the_bits_of_one_process(
    folder: Path, tmp_path: Path, expected: Outcome, num_ranks: int, microbatches: str
) -> None:
    task = task_of(folder, strategy="pipeline", microbatches=microbatches)
    tune(task, tmp_path / "run", options=replace(OPTIONS, num_ranks=num_ranks))
    assert result_of(tmp_path / "run") == expected
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        windows = reader.facts().pipeline_windows or {}
    assert (windows.get("solver", 0) > 0) == (microbatches == "solver"), windows


@pytest.mark.slow
def test_stages_of_a_quantised_model_give_the_bits_of_one_process(folder: Path, tmp_path: Path) -> None:
    tune(task_of(folder, quantization="nf4"), tmp_path / "one", options=OPTIONS)
    tune(task_of(folder, quantization="nf4", strategy="pipeline"), tmp_path / "run", options=TWO)
    assert result_of(tmp_path / "run") == result_of(tmp_path / "one")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("strategy", "compiles"), [("adapter_parallel", True), ("tensor", True), ("pipeline", True), ("pipeline", False)]
)
def test_two_gpus_hold_one_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, compiles: bool
) -> None:
    """Sums in bfloat16 have another order, so early losses are near those of one GPU; a resume moves to one GPU."""
    if not compiles:
        use_no_triton(monkeypatch)
    one, two = tmp_path / "one", tmp_path / "two"
    tune(task_of(folder, num_gpus=1), one, options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task_of(folder, strategy=strategy, num_gpus=2), two, options=OPTIONS, watcher=Interrupting(14))
    with_strategy(two, "replicas")
    resume(two, options=replace(OPTIONS, num_ranks=1))
    expected, found = outcome_of(one)["steps"], outcome_of(two)["steps"]
    assert found.keys() & expected.keys()
    for key in found.keys() & expected.keys():
        if key[1] <= 4:
            # half a per cent is the rounding of bfloat16
            assert float(found[key][0]) == pytest.approx(float(expected[key][0]), rel=5e-3), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *itertools.permutations([("replicas", 1), ("adapter_parallel", 4), ("tensor", 2), ("pipeline", 3)], 2),
        (("pipeline", 4), ("pipeline", 2)),
        (("tensor", 2), ("tensor", 4)),
        (("tensor", 4), ("tensor", 2)),
    ],
)
def test_a_run_goes_on_with_another_strategy(
    folder: Path, tmp_path: Path, expected: Outcome, before: tuple[str, int], after: tuple[str, int]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(
            task_of(folder, strategy=before[0]),
            run,
            options=replace(OPTIONS, num_ranks=before[1]),
            watcher=Interrupting(10),
        )
    with_strategy(run, after[0])
    resume(run, options=replace(OPTIONS, num_ranks=after[1]))
    if "tensor" in (before[0], after[0]):
        require_near(run, expected)
    else:
        assert result_of(run) == expected


@pytest.mark.slow
def test_a_run_that_lost_a_stage_goes_on_by_itself(
    folder: Path, tmp_path: Path, expected: Outcome, started: list[RankProcess]
) -> None:
    run, watcher, task = tmp_path / "run", Killing(started, at=9), task_of(folder, strategy="pipeline")
    train_despite_losses(lambda: tune(task, run, options=TWO, watcher=watcher), run, watcher=watcher, options=TWO)
    assert result_of(run) == expected
    assert len(started) == 4


def test_what_does_not_work_with_a_strategy_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(
        folder,
        strategy="pipeline",
        training={"optim": "adamw_8bit"},
        memory={"host_streamed_layers": 3},
    )
    with pytest.raises(InputError) as refused:
        tune(task, tmp_path / "run", options=replace(OPTIONS, num_ranks=5))
    found = [f"{problem.where} {problem.found} {problem.allowed}" for problem in refused.value.problems]
    for words in ("5 stages for a model with 4 layers", "adamw_8bit", "3 with strategy"):
        assert any(words in text for text in found), words
    with pytest.raises(InputError, match=r"3 ranks for a model with"):
        tune(task_of(folder, strategy="tensor"), tmp_path / "run", options=replace(OPTIONS, num_ranks=3))
    assert not (tmp_path / "run").exists()
    # one GPU holds the whole model
    assert check_task(task_of(folder, strategy="tensor")).num_trials == 6
