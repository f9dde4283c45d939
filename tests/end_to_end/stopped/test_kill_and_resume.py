"""Killed at any moment and resumed, a run ends with the same adapters, losses and decisions, bit for bit."""

from __future__ import annotations

import copy
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from cohort.engine.lost_checkpoints import train_again
from cohort.runs.reader import RunReader
from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.stopped.killing import Killing
from tests.end_to_end.tiny_tasks import outcome_of, write_inputs

SECTIONS: dict[str, Any] = {"training": {"max_steps": 8}, "evaluation": {"metric": "exact_match", "max_new_tokens": 3}}
# rules whose decisions depend on the order in which results come in must meet them in the same order again
ORDERED: dict[str, Any] = {
    "training": {"max_steps": 8},
    "early_exit": {"rule": "asha", "warmup_fraction": 0.25},
    # proposals that follow from results must be made again as well
    "search": {"sampler": "tpe", "trials": 14, "space": {"learning_rate": {"min": 1e-4, "max": 3e-2}, "r": [2, 4]}},
}


@pytest.fixture(scope="module")
def killing(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Killing:
    return Killing(fork_server, write_inputs(tmp_path_factory.mktemp("killing")), SECTIONS)


@pytest.fixture(scope="module")
def ordered(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Killing:
    return Killing(fork_server, write_inputs(tmp_path_factory.mktemp("ordered")), ORDERED)


def kill_at_moments(killing: Killing, run: Path, shares: list[float]) -> None:
    """Kill once at each share of the undisturbed run's time, then let it end."""
    for share in shares:
        if killing.go_on(run, kill_after=share * killing.seconds) == 0:
            break
    assert killing.go_on(run) == 0
    killing.assert_same(run)


def kill_in_write(killing: Killing, run: Path, *, call: str, number: int) -> None:
    status = killing.go_on(run, command={"fault": {"call": call, "number": number}})
    assert status in (-signal.SIGKILL, 0)
    assert killing.go_on(run) == 0
    killing.assert_same(run)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments(killing: Killing, tmp_path: Path, seed: int) -> None:
    kill_at_moments(killing, tmp_path / "run", [random.Random(seed).random()])


def test_killed_again_and_again(ordered: Killing, tmp_path: Path) -> None:
    kill_at_moments(ordered, tmp_path / "run", [0.5, 0.6, 0.4, 0.7])


@pytest.mark.parametrize(("call", "number"), [("fsync", 1), ("replace", 2), ("fsync", 33)])
def test_killed_inside_a_write(ordered: Killing, tmp_path: Path, call: str, number: int) -> None:
    kill_in_write(ordered, tmp_path / "run", call=call, number=number)


def test_killed_behind_its_results(killing: Killing, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # with two finalists some trial has lost whose checkpoint no result needs
    killing = copy.copy(killing)
    killing.command = {**killing.command, "sections": {**SECTIONS, "evaluation": {"finalists": 2}}}
    assert (
        killing.server.run({**killing.command, "act": "tune", "run": str(run), "dies_behind": True}) == -signal.SIGKILL
    )
    ended = outcome_of(run)
    assert killing.go_on(run) == 0
    assert outcome_of(run) == ended
    assert [path for path in run.rglob("*") if "partial" in path.name] == []
    with RunReader.open(run / "run.db") as reader:
        bests = {trial.trial_id: trial.best_step for trial in reader.trials()}
    files = {n: run / f"trials/{n:04d}/best-{step:06d}.safetensors" for n, step in bests.items()}
    lost = [n for n, path in files.items() if not path.is_file()]
    assert lost
    train_again(run, lost)
    undisturbed = tmp_path / "undisturbed"
    assert killing.go_on(undisturbed) == 0
    assert outcome_of(undisturbed) == ended
    for path in files.values():
        assert path.read_bytes() == (undisturbed / path.relative_to(run)).read_bytes()


def test_interrupted_by_the_keyboard(killing: Killing, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert killing.go_on(run, kill_after=0.6 * killing.seconds, by=signal.SIGINT) in (130, 0)
    assert killing.go_on(run) == 0
    killing.assert_same(run)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_soak_killed_at_moments_spread_over_the_run(
    killing: Killing, ordered: Killing, tmp_path: Path, number: int
) -> None:
    """Uniformly over the run's time; every fifth is killed a second time while it resumes."""
    which = (killing, ordered)[number % 2]
    again = [random.Random(number).random()] if number % 5 == 0 else []
    kill_at_moments(which, tmp_path / "run", [(number + 0.5) / 50, *again])


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 11, 17, 23, 31, 47, 61, 83, 101, 137])
def test_soak_killed_inside_a_write(ordered: Killing, tmp_path: Path, call: str, number: int) -> None:
    kill_in_write(ordered, tmp_path / "run", call=call, number=number)


def test_a_kill_undoes_nothing_that_people_asked_for(fork_server: ForkServer, tmp_path: Path) -> None:
    server, folder = fork_server, write_inputs(tmp_path / "inputs")
    asks: list[tuple[int, dict[str, Any]]] = [
        (1, {"kind": "stop", "trial_id": 1}),
        (1, {"kind": "keep", "trial_id": 2}),
        (20, {"kind": "clone", "trial_id": 2, "values": {"learning_rate": 2e-3}, "warm_start": True}),
        (24, {"kind": "resume", "trial_id": 1}),
    ]
    command = {"act": "tune", "folder": str(folder), "sections": ORDERED}
    assert server.run({**command, "run": str(tmp_path / "undisturbed"), "asks": asks}) == 0
    expected, run = outcome_of(tmp_path / "undisturbed"), tmp_path / "killed"
    assert sum('"rule": "user"' in decision for decision in expected["decisions"]) == len(asks)
    assert server.run({**command, "run": str(run), "asks": asks, "dies_at": 40}) == -signal.SIGKILL
    assert server.run({**command, "act": "resume", "run": str(run), "asks": []}) == 0
    assert outcome_of(run) == expected
    # killed while a request waits: the resume takes it up
    late, asks = tmp_path / "late", [(2, {"kind": "stop", "trial_id": 3})]
    assert server.run({**command, "run": str(late), "asks": asks, "dies_at": 2}) == -signal.SIGKILL
    assert server.run({**command, "act": "resume", "run": str(late), "asks": []}) == 0
    with RunReader.open(late / "run.db") as reader:
        assert reader.trial(3).reason == "stopped by user"
    assert not list((late / "requests").glob("*.request"))


@pytest.mark.gpu
def test_exact_numerics_resume_with_the_same_bits_on_a_gpu(fork_server: ForkServer, tmp_path: Path) -> None:
    sections = {"training": {"max_steps": 40}, "numerics": "exact", "num_gpus": 1}
    # it fails by itself where two undisturbed runs differ
    killing = Killing(fork_server, write_inputs(tmp_path / "inputs"), sections)
    with RunReader.open(killing.folder / "undisturbed" / "run.db") as reader:
        assert "exact numerics" in str(reader.facts().machine.precision)
        assert str(reader.facts().machine.device).startswith("cuda")
    kill_at_moments(killing, tmp_path / "run", [0.6, 0.8])
