"""A script's own reward is computed elsewhere without running the script again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cohort.metrics.rewards.script_functions import script_source

SCRIPT = """
import math as m
import re
from pathlib import Path

print("the script runs")
WORDS = ("good", "fine")
PATTERN = re.compile("[a-z]+", re.I)
OPEN = open(__file__)

def _key(text):  # a name that the process has as well
    return text

def _words(text):
    text = _key(text)
    return PATTERN.findall(text)

class Count:
    def of(self, text):
        return sum(word in WORDS for word in _words(text))

def kind(completions, **columns):
    return [m.sqrt(Count().of(text)) for text in completions]

def reads(completions, **columns):
    return [float(len(OPEN.read())) for _ in completions]

from cohort.tasks.task import Task
from cohort.metrics.rewards import RewardRunner

rows = [{"prompt": str(n), "answer": "a"} for n in range(9)]
task = Task(model=MODEL, dataset=rows, objective="grpo", rewards=[kind, reads], num_gpus=0)
plan = task.file.rewards.plan()
assert plan.names == ("kind", "reads")
assert "Task" not in plan.functions[0].source and plan.functions[1].source == ""
with RewardRunner(plan) as runner:
    runner.submit(prompts=["p"], completions=["good, fine, GOOD fine"], columns=[{}], sources=["a:1"])
    ((found,), problems) = runner.collect().values(), runner.problems()
print(found.by_function["kind"], [str(problem.hint) for problem in problems])
"""


def test_a_function_of_a_script_is_sent_without_the_script(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("MODEL", repr(str(tmp_path / "model"))))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    first, last = done.stdout.splitlines()
    assert first == "the script runs"
    # three words of the list: the pattern ignores case, the list does not
    assert last.startswith("(1.7320508075688772,)")
    # an open file cannot be sent: its function belongs into a module
    assert "put it into a module" in last


def test_what_is_not_in_the_script_has_no_source() -> None:
    assert script_source("no_such_name") is None
