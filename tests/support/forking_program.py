"""A test program that has imported everything, reads a command a line and carries each out in a fork."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import REPOSITORY

__all__ = ["end_program", "start_program"]


def start_program(module: str, **environment: str) -> subprocess.Popen[str]:
    """Start a module of the tests with these settings of its environment; lines go both ways."""
    # packages may come by it, too
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        cwd=REPOSITORY,
    )


def end_program(process: subprocess.Popen[str]) -> None:
    """End its input, and wait until it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()
