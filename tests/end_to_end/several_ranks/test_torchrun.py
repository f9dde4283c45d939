"""Processes that torchrun starts, on one host and on two agents of this machine, give the bits of one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError
from cohort.engine.tune import resume, tune
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_tiny_model
from tests.conftest import REPOSITORY
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, tiny_task, write_inputs
from tests.support.free_ports import free_port
from tests.support.no_triton import use_no_triton

# long enough for a kill in the middle
STEPS: dict[str, Any] = {"training": {"max_steps": 60, "batch_size": 1}, "search": {"space": {"r": [2, 4]}}}
# a free port for each, as tests may run side by side
TWO_PROCESSES = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("torchrun") / "in")
    # a layer for each of four stages
    write_tiny_model(folder / "model", num_layers=4)
    for name, sections in (("short", {}), ("long", STEPS)):
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(**sections)))
        for strategy in ("pipeline", "tensor"):
            data = tiny_data(strategy=strategy, **sections)
            (folder / f"{name}-{strategy}.yaml").write_text(json.dumps(data))
    torch.set_num_threads(1)
    return folder


def result_of(run: Path) -> Outcome:
    """Everything but the order of decisions: with twice the room, other trials warm up first."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


def torchrun(*words: str | Path, python: Path | None = None, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    path = os.pathsep.join(filter(None, [str(python or REPOSITORY / "src"), inherited.get("PYTHONPATH")]))
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *map(str, words)],
            env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ended(*agents: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [agent.wait(240) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


def on_two_hosts(port: int, host: int, *more: str) -> list[str]:
    return [
        "--nnodes", "2", "--node-rank", str(host), "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", str(port), *more, "-m", "cohort",
    ]  # fmt: skip


def wait_for(condition: Callable[[], bool], *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def num_steps(run: Path) -> int:
    try:
        with RunReader.open(run / "run.db") as reader:
            return len(reader.log.steps())
    except CohortError:
        return 0


def ranks_of(agent: subprocess.Popen[bytes]) -> dict[int, int]:
    """The processes of an agent, by local rank."""
    listed = subprocess.run(["ps", "--ppid", str(agent.pid), "-o", "pid="], capture_output=True, text=True, check=False)
    found: dict[int, int] = {}
    for process_id in map(int, listed.stdout.split()):
        words = Path(f"/proc/{process_id}/environ").read_bytes().decode().split("\0")
        found |= {int(word.removeprefix("LOCAL_RANK=")): process_id for word in words if word.startswith("LOCAL_RANK=")}
    return found


def test_two_hosts_with_two_processes_each_tune_one_task(folder: Path, tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    words = ("tune", folder / "short.yaml", "-o", run)
    agents = [torchrun(*on_two_hosts(port, host), *words, log=tmp_path / f"host-{host}.log") for host in (0, 1)]
    assert ended(*agents) == [0, 0], (tmp_path / "host-0.log").read_text()
    tune(tiny_task(folder), tmp_path / "one")
    assert result_of(run) == result_of(tmp_path / "one")
    said = (tmp_path / "host-0.log").read_text()
    assert "6 trials on 4 x cpu" in said
    # the other ranks have nothing to say
    assert "trials" not in (tmp_path / "host-1.log").read_text()


@pytest.mark.slow
def test_two_hosts_hold_one_model_as_a_pipeline(folder: Path, tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    words = ("tune", folder / "short-pipeline.yaml", "-o", run)
    agents = [
        # the name of this machine need not lead to an address that others reach
        torchrun(*on_two_hosts(port, host), *words, log=tmp_path / f"host-{host}.log", GLOO_SOCKET_IFNAME="lo")
        for host in (0, 1)
    ]
    assert ended(*agents) == [0, 0], (tmp_path / "host-0.log").read_text()
    tune(tiny_task(folder), tmp_path / "one")
    assert result_of(run) == result_of(tmp_path / "one")
    assert "4 processes hold 1 + 1 + 1 + 1 layers" in (tmp_path / "host-0.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_a_lost_rank_of_one_model_is_started_again_and_tune_goes_on(
    folder: Path, tmp_path: Path, strategy: str
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = ("tune", folder / f"long-{strategy}.yaml", "-o", run)
    agent = torchrun(*TWO_PROCESSES, "--max-restarts", "1", "-m", "cohort", *words, log=log)
    wait_for(lambda: num_steps(run) >= 4)
    os.kill(ranks_of(agent)[1], signal.SIGKILL)
    assert ended(agent) == [0], log.read_text()
    tune(tiny_task(folder, **STEPS), tmp_path / "one")
    expected, found = result_of(tmp_path / "one"), result_of(run)
    if strategy == "pipeline":
        assert found == expected
    else:
        # sums over shards round otherwise: the same trials and steps
        assert found["steps"].keys() == expected["steps"].keys()
        assert found["best"] == expected["best"]


@pytest.mark.slow
def test_a_lost_process_is_started_again_and_tune_goes_on(folder: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = (*TWO_PROCESSES, "--max-restarts", "1", "-m", "cohort", "tune", folder / "long.yaml", "-o", run)
    agent = torchrun(*words, log=log)
    wait_for(lambda: num_steps(run) >= 4)
    os.kill(ranks_of(agent)[1], signal.SIGKILL)
    assert ended(agent) == [0], log.read_text()
    tune(tiny_task(folder, **STEPS), tmp_path / "one")
    assert result_of(run) == result_of(tmp_path / "one")


@pytest.mark.slow
def test_a_host_with_other_code_is_refused_by_name_before_training(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "src"
    shutil.copytree(REPOSITORY / "src", other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "cohort" / "version.py").open("a") as code:
        code.write("# another version\n")
    port, run = free_port(), tmp_path / "run"
    words = ("tune", folder / "short-pipeline.yaml", "-o", run)
    agents = [
        torchrun(*on_two_hosts(port, host), *words, python=python, log=tmp_path / f"host-{host}.log")
        for host, python in enumerate((None, other))
    ]
    assert all(ended(*agents))
    said = (tmp_path / "host-0.log").read_text()
    assert re.search(r"torchrun: rank 2 on \S+\s+found\s+cohort \S+ \(code \w+\)\s+allowed\s+cohort", said), said
    assert "Install the same versions on every host." in said
    assert not run.exists()


@pytest.mark.slow
def test_a_lost_host_ends_the_run_cleanly_and_a_resume_gives_the_same_bits(folder: Path, tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    words = ("tune", folder / "long.yaml", "-o", run)
    agents = [torchrun(*on_two_hosts(port, host), *words, log=tmp_path / f"host-{host}.log") for host in (0, 1)]
    wait_for(lambda: num_steps(run) >= 4)
    lost = ranks_of(agents[1])
    # the agent dies without a word to the other one, and its ranks with it
    for process_id in (agents[1].pid, *lost.values()):
        os.kill(process_id, signal.SIGKILL)
    assert ended(*agents)[0] == 1
    said = (tmp_path / "host-0.log").read_text()
    assert re.search(r"error: rank [23] \(process \d+ on .*\) is gone; everything up to the last checkpoint", said)
    # torchrun has a traceback of its own
    assert "src/cohort/" not in said
    resume(run)
    tune(tiny_task(folder, **STEPS), tmp_path / "one")
    assert result_of(run) == result_of(tmp_path / "one")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["replicas", "pipeline", "tensor"])
def test_two_gpus_under_torchrun_give_the_bits_of_two_gpus_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    use_no_triton(monkeypatch)
    (folder / "gpu.yaml").write_text(json.dumps(tiny_data(num_gpus="auto", strategy=strategy)))
    run, log = tmp_path / "run", tmp_path / "log"
    agent = torchrun(*TWO_PROCESSES, "-m", "cohort", "tune", folder / "gpu.yaml", "-o", run, log=log)
    assert ended(agent) == [0], log.read_text()
    assert "6 trials on 2 x cuda" in log.read_text()
    tune(tiny_task(folder, num_gpus=2, strategy=strategy), tmp_path / "own")
    assert outcome_of(run)["steps"] == outcome_of(tmp_path / "own")["steps"]
