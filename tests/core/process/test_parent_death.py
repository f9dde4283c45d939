"""A process that hangs ends with the one that started it, and at once where that one is gone."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.process_states import is_gone, wait_until_gone

CHILD = """
import os, sys, time
from cohort.core.process.parent_death import die_with_parent
die_with_parent({parent})
print(os.getpid(), flush=True)
time.sleep(3600)
"""


def test_a_child_that_sleeps_ends_with_its_parent() -> None:
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD.format(parent='os.getppid()')!r}])"
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not is_gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(child)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD.format(parent=1)], capture_output=True, check=False, timeout=60)
    assert os.getpid() != 1
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_a_child_whose_parent_lives_goes_on() -> None:
    code = "import os; from cohort.core.process.parent_death import die_with_parent as die; die(os.getppid()); print(1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "1\n")
