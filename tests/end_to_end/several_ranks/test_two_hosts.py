"""One task over two hosts, of which one vanishes: noticed in time, continued from the last checkpoint, nothing lost."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError
from cohort.engine.tune import resume, tune
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, tiny_task, write_inputs
from tests.support.hosts import Host, two_hosts, why_no_hosts

REASON = why_no_hosts()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "hosts are here")

# what a user waits for at most before a host that is gone is missed
MOST_SECONDS = 30.0
SECTIONS: dict[str, Any] = {
    "early_exit": "none",
    "packing": "planned",
    "evaluation": {"finalists": 0, "max_examples": 2},
    "training": {"max_steps": 150, "batch_size": 1},
    "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [2]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("hosts") / "in")
    (folder / "task.yaml").write_text(json.dumps(tiny_data(**SECTIONS)))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    torch.set_num_threads(1)
    tune(tiny_task(folder, **SECTIONS), folder / "one")
    return result_of(folder / "one")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    with two_hosts(tmp_path) as made:
        yield made


def result_of(run: Path) -> Outcome:
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


def launch(hosts: tuple[Host, Host], *words: str | Path, port: int, logs: Path) -> list[subprocess.Popen[bytes]]:
    """Start one process on each host by torchrun."""
    first = hosts[0].address
    return [
        host.start(
            *("-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(place), "--nproc-per-node", "1"),
            *("--master-addr", first, "--master-port", str(port), "-m", "cohort", *words),
            log=logs / f"host-{place}.log",
        )
        for place, host in enumerate(hosts)
    ]


def num_steps(run: Path) -> int:
    try:
        with RunReader.open(run / "run.db") as reader:
            return len(reader.log.steps())
    except CohortError:
        return 0


def wait_for(condition: Callable[[], bool], *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def vanishes(hosts: tuple[Host, Host], agents: list[subprocess.Popen[bytes]], run: Path, *, steps: int) -> bool:
    """Let the second host vanish once the run has so many steps; return False if the run ended before."""
    wait_for(lambda: num_steps(run) >= steps or agents[0].poll() is not None)
    if agents[0].poll() is not None:
        return False
    hosts[1].vanish()
    began = time.monotonic()
    # the process of the first host misses it and ends, and torchrun with it
    wait_for(lambda: agents[0].poll() is not None, seconds=2 * MOST_SECONDS)
    seconds = time.monotonic() - began
    # the machine may be busy with other tests: what counts is that no one waits for ever
    assert seconds < MOST_SECONDS + 10, f"noticed after {seconds:.0f} s"
    assert agents[0].returncode != 0
    hosts[1].come_back()
    # what was cut off ends by itself, or it would train beside those that go on
    wait_for(lambda: not hosts[1].processes(), seconds=90)
    return True


def test_a_host_that_vanishes_is_missed_and_the_run_goes_on_without_it(
    folder: Path, tmp_path: Path, expected: Outcome, hosts: tuple[Host, Host]
) -> None:
    run = tmp_path / "run"
    agents = launch(hosts, "tune", folder / "task.yaml", "-o", run, port=29511, logs=tmp_path)
    assert vanishes(hosts, agents, run, steps=20), (tmp_path / "host-0.log").read_text()
    said = (tmp_path / "host-0.log").read_text()
    assert "rank 1" in said
    assert "is gone; " in said
    done = num_steps(run)
    assert 0 < done < 300
    # each host has a home and a temporary folder of its own, and the run is in the folder that both see
    assert all((host.folder / "home").is_dir() for host in hosts)
    resume(run)
    assert result_of(run) == expected
    with RunReader.open(run / "run.db") as reader:
        # nothing twice, and nothing of what the host that was cut off did meanwhile
        assert len(reader.log.steps()) == 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_soak_ten_vanishings_at_random_moments(
    folder: Path, tmp_path: Path, expected: Outcome, hosts: tuple[Host, Host]
) -> None:
    rng, run, vanished = random.Random(0), tmp_path / "run", 0
    words: tuple[str | Path, ...] = ("tune", folder / "task.yaml", "-o", run)
    for attempt in range(40):
        agents = launch(hosts, *words, port=29520 + attempt, logs=tmp_path)
        if vanished < 10 and vanishes(hosts, agents, run, steps=num_steps(run) + rng.randrange(1, 20)):
            vanished += 1
            words = ("resume", run)
            continue
        assert [agent.wait(240) for agent in agents] == [0, 0], (tmp_path / "host-0.log").read_text()
        break
    assert vanished == 10
    assert result_of(run) == expected
