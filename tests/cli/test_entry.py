"""The process of a command ends with its exit code, after its threads and what was to run at its end, and at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# in place of the command line: a thread that outlives it, something to run at the end, a module that tells of its end
PROGRAM = """
import atexit, sys, threading, time, types

class Told:
    def __del__(self):
        print("taken apart", flush=True)

def main():
    atexit.register(lambda: print("at the end"))
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
    print("written", end=" ")
    {ending}

line = types.ModuleType("cohort.cli.main")
line.main, line.told = main, Told()
sys.modules["cohort.cli.main"] = line
from cohort.cli.entry import command
command()
"""


def ended(ending: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{ending}", ending)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("ending", "code"),
    [("return", 0), ("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit(141)", 141)],
)
def test_a_command_ends_with_its_code_and_is_not_taken_apart(ending: str, code: int) -> None:
    found = ended(ending)
    assert (found.returncode, found.stdout, found.stderr) == (code, "written a thread\nat the end\n", "")


def test_words_in_place_of_a_code_are_printed() -> None:
    found = ended("sys.exit('no such file')")
    assert (found.returncode, found.stderr) == (1, "no such file\n")
    assert found.stdout == "written a thread\nat the end\n"


def test_an_error_that_nobody_caught_ends_as_python_does() -> None:
    found = ended("raise ValueError('wrong')")
    assert found.returncode == 1
    assert found.stderr.endswith("ValueError: wrong\n")
    assert found.stdout.endswith("at the end\ntaken apart\n")


def signalled(module: str, number: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command; a signal comes as ``module`` is imported."""
    program = f"""
import signal, sys

class Arriving:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal({number})

sys.meta_path.insert(0, Arriving())
from cohort.cli.entry import command
command()
"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["cohort.cli.main", "cohort.prepare.fitting_task", "cohort.engine.tune"])
@pytest.mark.parametrize(("number", "word"), [(2, "Ctrl-C"), (15, "SIGTERM"), (1, "SIGHUP")])
def test_a_signal_in_an_import_ends_it_with_a_word(
    module: str, number: int, word: str, task: Path, tmp_path: Path
) -> None:
    found = signalled(module, number, "tune", task, "-o", tmp_path / "run")
    assert (found.returncode, found.stdout) == (128 + number, "")
    assert found.stderr.startswith(f"interrupted by {word} before anything was begun")
    assert len(found.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", ["cohort.prepare.fitting_task", "cohort.engine.tune"])
def test_a_run_that_is_continued_is_not_said_to_have_begun_nothing(module: str, folder: Path) -> None:
    words = ("tune", folder / "task.yaml", "-o", folder / "run", "--on-existing", "resume")
    found = signalled(module, 15, *words)
    assert (found.returncode, found.stdout) == (143, "")
    assert "the state is saved" in found.stderr
    assert f"cohort resume {folder / 'run'}" in found.stderr
    found = signalled(module, 15, *words, "--json")
    assert json.loads(found.stdout)["error"]["exit_code"] == 143
    assert found.stderr == ""


def test_the_module_is_the_command() -> None:
    found = subprocess.run([sys.executable, "-m", "cohort", "--version"], capture_output=True, text=True, check=False)
    assert found.returncode == 0
    assert found.stdout.startswith("cohort ")
