"""A process of rewards ends with the program that started it, whatever it computes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

FUNCTIONS = """
import os, re, time
from pathlib import Path

def sleeps(completions, **columns):
    Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(60)

def has_children(completions, **columns):
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(__file__).with_suffix(".pid").write_text(str(child.pid))
    time.sleep(60)

def never_lets_go(completions, **columns):
    Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))
    # backtracks for ages, and no thread of the process runs meanwhile
    re.fullmatch("(a+)+", "a" * 60 + "b")
"""
PROGRAM = """
import sys
from cohort.metrics.rewards import PlannedReward, RewardPlan, RewardRunner

plan = RewardPlan(functions=(PlannedReward(name="own", function=sys.argv[1]),), time_limit=50.0, workers=1)
runner = RewardRunner(plan)
runner.submit(prompts=["p"], completions=["c"], columns=[{}], sources=["train.jsonl:1"])
runner.collect()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
@pytest.mark.parametrize("function", ["sleeps", "never_lets_go", "has_children"])
def test_neither_a_function_that_hangs_nor_what_it_started_outlives_a_killed_program(
    tmp_path: Path, function: str
) -> None:
    module = tmp_path / "rewards.py"
    module.write_text(FUNCTIONS)
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, f"{module}:{function}"])
    try:
        _wait_for(lambda: _text_of(module.with_suffix(".pid")) != "")
        # it is in the function by now
        time.sleep(0.2)
    finally:
        program.kill()
        program.wait()
    worker = int(_text_of(module.with_suffix(".pid")))
    try:
        _wait_for(lambda: not _runs(worker))
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def _runs(process: int) -> bool:
    # one that has ended is a zombie until its new parent has asked for it
    return _text_of(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "it has not happened within 30 seconds"
        time.sleep(0.02)
