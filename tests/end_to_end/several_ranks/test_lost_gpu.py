"""A GPU's process that dies while both wait for each other in NCCL: the run ends soon, and a resume goes on."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from cohort.core.errors import RankLostError
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.ranks.rank_process import RankProcess
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import Interrupting, outcome_of, tiny_task, write_inputs

# as soon as the last one is written
OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=2048)
# the process that commands the ranks learns of the death at once, and ends the one that waits
SECONDS = 20.0


class Killing(Interrupting):
    """Kills the second rank once the trials have done nine steps together, and notes when."""

    def __init__(self, started: list[RankProcess]) -> None:
        super().__init__()
        self._started, self.killed_at = started, 0.0

    def update(self, progress: RunProgress) -> None:
        if not self.killed_at and sum(trial.steps_done for trial in progress.trials) >= 9:
            self.killed_at = time.monotonic()
            os.kill(self._started[1].process_id, signal.SIGKILL)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_a_killed_rank_of_two_gpus_ends_the_run_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    folder, run = write_inputs(tmp_path / "inputs"), tmp_path / "run"
    write_tiny_model(folder / "model", num_layers=4)
    started: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)
    watcher = Killing(started)
    with pytest.raises(RankLostError, match=r"rank \d .*go on with `cohort resume`"):
        tune(tiny_task(folder, strategy=strategy, num_gpus=2), run, options=OPTIONS, watcher=watcher)
    assert time.monotonic() - watcher.killed_at < SECONDS
    assert all(process._process.poll() is not None for process in started), "the one that waits is ended as well"
    before, saved = outcome_of(run)["steps"], saved_steps(run)
    assert saved
    resume(run, options=OPTIONS)
    after = outcome_of(run)
    assert after["best"] is not None
    assert len(after["steps"]) > len(before)
    for key, numbers in before.items():
        if key in saved:
            assert after["steps"][key] == numbers, key
        else:
            # Made again. Shards replay recorded passes; the first ones of a process are launched, with fewer rows of
            # filler: other last bits of bfloat16, half a per cent of a loss, and of the weights of the steps after.
            assert float(after["steps"][key][0]) == pytest.approx(float(numbers[0]), rel=1e-2), key


def saved_steps(run: Path) -> set[tuple[int, int]]:
    """Return the steps that the last checkpoint holds, by trial and number."""
    with RunReader.open(run / "run.db") as reader:
        last = reader.checkpoints()[-1].position
        return {(step.trial_id, step.step) for step in reader.log.steps() if step.position <= last}
