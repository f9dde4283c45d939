"""The program that works the queue off: started again when it ends, with its reason in the log."""

from __future__ import annotations

import logging
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cohort.service.jobs.dispatcher import DispatcherProcess
from cohort.task_queue.workers.pool import PoolRequest

_FAILING = "import sys; sys.stdin.readline(); print('it begins'); sys.exit('error: --ray 192.0.2.1:1: no cluster')"


def test_a_dispatcher_that_cannot_work_says_why_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def failing(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        # with the options that the program is started with
        return start([*command[: command.index("-m")], "-c", _FAILING], **options)

    monkeypatch.setattr("cohort.service.jobs.dispatcher.subprocess.Popen", failing)
    process = DispatcherProcess(tmp_path / "queue", PoolRequest(ray="192.0.2.1:1"))
    until = time.monotonic() + 60
    with caplog.at_level(logging.WARNING):
        while not caplog.messages and time.monotonic() < until:
            process.keep_alive()
            time.sleep(0.02)
    process.stop(wait_seconds=10.0)
    assert caplog.messages == ["the dispatcher ended with 1 and is started again: error: --ray 192.0.2.1:1: no cluster"]
