"""A signal to all processes of a run on several ranks, in each phase: it is saved, and resumes to the same bits."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.reader import RunReader
from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, write_inputs

# the phase, the function at whose call it is stopped, and that call's number
PHASES = (
    ("the ranks starting", "cohort.ranks.rank_process:RankProcess.answer", 1),
    ("measuring the base model", "cohort.engine.train.task_run:TaskRun.measure_base", 1),
    ("training", "cohort.engine.train.task_run:TaskRun.between_steps", 3),
    ("writing a checkpoint", "cohort.engine.train.state_saving:StateSaving.begin", 1),
    ("the last comparison", "cohort.engine.train.finals:Finals.hold", 1),
    ("writing best", "cohort.engine.train.finish:write_adapter_directory", 1),
)
SAMPLE = [("training", signal.SIGTERM)]
ALL = [(name, number) for name, _, _ in PHASES for number in (signal.SIGINT, signal.SIGTERM)]
REST = [case for case in ALL if case not in SAMPLE]


def ids(cases: list[tuple[str, signal.Signals]]) -> list[str]:
    return [f"{name.replace(' ', '_')}-{number.name}" for name, number in cases]


class StoppingRanks:
    """A task on two ranks, and what it comes to on one."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        assert self.call("tune", folder / "one", num_ranks=1) == 0
        self.expected = result_of(folder / "one")

    def call(self, act: str, run: Path, **words: Any) -> int:
        command = {"act": act, "folder": str(self._folder), "sections": {}, "run": str(run)}
        return self._server.run({**command, "num_ranks": 2, **words})

    def check(self, run: Path, name: str, number: signal.Signals) -> None:
        at, call = next((at, call) for found, at, call in PHASES if found == name)
        sent = {"at": at, "call": call, "number": number, "to_workers": True}
        assert self.call("tune", run, signal=sent) == 128 + number
        if (run / "run.db").exists():
            with RunReader.open(run / "run.db") as reader:
                saved, reached = reader.checkpoints()[-1].position, reader.log.last_position()
            assert saved == reached, "nothing is trained again"
        act = "resume" if (run / "task.yaml").exists() else "tune"
        assert self.call(act, run) == 0
        assert result_of(run) == self.expected


def result_of(run: Path) -> Outcome:
    """Everything but the order of decisions: with twice the room, other trials warm up first."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


@pytest.fixture(scope="module")
def stopping(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> StoppingRanks:
    return StoppingRanks(fork_server, write_inputs(tmp_path_factory.mktemp("stopping")))


@pytest.mark.parametrize(("name", "number"), SAMPLE, ids=ids(SAMPLE))
def test_a_signal_to_all_ranks_loses_nothing(
    stopping: StoppingRanks, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    stopping.check(tmp_path / "run", name, number)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), REST, ids=ids(REST))
def test_soak_a_signal_to_all_ranks_loses_nothing(
    stopping: StoppingRanks, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    stopping.check(tmp_path / "run", name, number)
