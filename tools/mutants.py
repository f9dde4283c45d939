"""Change one thing in the code of a room that computes without a device, and see whether its tests notice.

python -m tools.mutants                          120 mutants, drawn with seed 0
python -m tools.mutants --count 30 --seed 7
python -m tools.mutants --only src/cohort/tuning/study.py --count 20
python -m tools.mutants --page docs/mutants.md   writes the page as well

cosmic-ray makes the mutants. Each is written into a copy of the repository and meets the tests that mirror its file;
one that survives them meets those of its whole room. Tests run in a fork of this process, which has the large libraries
loaded. Where they take too long, they are ended, and the mutant counts as noticed.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import datetime
import importlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.drawn_mutants import Mutant, mutants_of, mutated

__all__ = ["Verdict", "main", "mirrors_of", "page", "sample", "room_tests"]

REPOSITORY = Path(__file__).resolve().parents[1]
# a room, and the tests of all of it
ROOMS = {
    "scheduling": ("tests/scheduling",),
    "tuning": ("tests/tuning",),
    "core": ("tests/core",),
    "engine/train": ("tests/engine", "tests/end_to_end/test_tune.py", "tests/end_to_end/stopped/test_resume.py"),
}
# the parent loads them once; nothing of the product is among them
LIBRARIES = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.optimize",
    "torch",
    "transformers",
    "tokenizers",
    "pydantic",
    "ruamel.yaml",
)
LEFT_BEHIND = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
# of a mutant, as a multiple of what its tests take without it, and at least and at most
PATIENCE, LEAST_SECONDS = 6.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant: ``killed`` by tests of its file, ``late`` by those of its room, or it ``survived``.

    Attributes:
        is_slow: It was killed because tests took too long.
    """

    mutant: Mutant
    outcome: str
    seconds: float
    is_slow: bool = False


def sample(files: Sequence[Path], *, count: int, seed: int, repository: Path = REPOSITORY) -> list[Mutant]:
    """Draw mutants, files by their length; the same ones for the same sources and seed."""
    rng = random.Random(seed)
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    left: dict[Path, list[tuple[str, int, tuple[int, int]]]] = {}
    found: list[Mutant] = []
    while len(found) < count and any(left.get(path, [()]) for path in files):
        (path,) = rng.choices(files, weights=lengths)
        if path not in left:
            left[path] = list(mutants_of(path))
            rng.shuffle(left[path])
        while left[path]:
            operator, occurrence, _ = left[path].pop()
            mutant = mutated(path, operator, occurrence, repository=repository)
            if mutant is not None:
                found.append(mutant)
                break
    return found


def mirrors_of(path: str, *, repository: Path = REPOSITORY) -> tuple[str, ...]:
    """Return the tests that mirror a file of ``src/cohort``: its own, else those of its folder, else of one above."""
    below = Path(path).relative_to("src/cohort")
    own = Path("tests") / below.parent / f"test_{below.stem}.py"
    if (repository / own).is_file():
        return (own.as_posix(),)
    folder = own.parent
    while not list((repository / folder).glob("test_*.py")):
        folder = folder.parent
    return tuple(sorted(each.relative_to(repository).as_posix() for each in (repository / folder).glob("test_*.py")))


def room_tests(path: str) -> tuple[str, ...]:
    """Return the tests of the room in which a file lies."""
    return next(tests for room, tests in ROOMS.items() if path.startswith(f"src/cohort/{room}/"))


def _run_tests(copy: Path, tests: Sequence[str]) -> int:
    """Run tests in this process, which ends with it."""
    os.setsid()
    sink = os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(copy)
    sys.path[:0] = [str(copy / "src"), str(copy)]
    # for the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    spec = importlib.util.find_spec("cohort")
    if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(copy):
        return 99
    pytest = importlib.import_module("pytest")
    # a plugin of pytest may be among the libraries that are loaded
    loaded = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *loaded, *tests]))


def _forked(copy: Path, tests: Sequence[str], *, seconds: float) -> tuple[int | None, float]:
    """Return the exit status of tests in a fork, None where they took longer than ``seconds``, and the seconds."""
    began = time.monotonic()
    process_id = os.fork()
    if process_id == 0:
        status = 98
        try:
            status = _run_tests(copy, tests)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while True:
        done, status = os.waitpid(process_id, os.WNOHANG)
        taken = time.monotonic() - began
        if done:
            return os.waitstatus_to_exitcode(status), taken
        if taken > seconds:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
            return None, taken
        time.sleep(0.02)


def judge(mutants: Sequence[Mutant], copy: Path, *, own_tests: bool = False) -> Iterator[Verdict]:
    """Yield what becomes of each mutant in a copy of the repository.

    Args:
        own_tests: Whether mutants meet the tests of their file alone.

    Raises:
        SystemExit: Tests fail without a mutant.
    """
    undisturbed: dict[tuple[str, ...], float] = {}

    def patience(tests: tuple[str, ...]) -> float:
        """Return how many seconds a mutant may take with tests."""
        if tests not in undisturbed:
            sys.dont_write_bytecode = False
            status, undisturbed[tests] = _forked(copy, tests, seconds=1200)
            if status != 0:
                sys.exit(f"tests fail without a mutant: {' '.join(tests)}\n{(copy / 'output').read_text()[-3000:]}")
        return max(LEAST_SECONDS, PATIENCE * undisturbed[tests])

    for mutant in mutants:
        path, outcome, spent = copy / mutant.path, "survived", 0.0
        status: int | None = 0
        own, room = mirrors_of(mutant.path, repository=copy), room_tests(mutant.path)
        for name, tests in (("killed", own), ("late", room))[: 1 if own_tests else 2]:
            most = patience(tests)
            original, times = path.read_bytes(), path.stat()
            # a compiled file is known by the source's length and second: no mutant is to have those of another code
            sys.dont_write_bytecode = True
            path.write_text(mutant.code, encoding="utf-8")
            os.utime(path, (times.st_atime, times.st_mtime + 3600))
            status, seconds = _forked(copy, tests, seconds=most)
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            spent += seconds
            if status != 0:
                outcome = name
                break
        yield Verdict(mutant=mutant, outcome=outcome, seconds=spent, is_slow=status is None)


def page(verdicts: Sequence[Verdict], *, command: str) -> str:
    """Return the page that lists the survivors."""
    killed = sum(verdict.outcome != "survived" for verdict in verdicts)
    by_own = sum(verdict.outcome == "killed" for verdict in verdicts)
    slow = sum(verdict.is_slow for verdict in verdicts)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# Mutants that the tests do not notice",
        "",
        f"`{command}` on {datetime.datetime.now(datetime.UTC).date().isoformat()}"
        + (f", commit {commit}" if commit else "")
        + f": mutants_killed = {killed / len(verdicts):.2f}, which is {killed} of {len(verdicts)}. The tests that"
        f" mirror its file noticed {by_own}, others of its room {killed - by_own};"
        f" {slow} were ended as they took too long.",
        "",
        "| file | without | with |",
        "|---|---|---|",
    ]
    for verdict in verdicts:
        if verdict.outcome == "survived":
            before, after = (text.replace("|", "\\|") for text in verdict.mutant.changed)
            lines.append(f"| {verdict.mutant.path}:{verdict.mutant.line} | `{before}` | `{after}` |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print ``mutants_killed`` and the survivors; return 1 where fewer than ``--least`` were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="how many mutants (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument(
        "--least", type=float, default=0.0, help="the share below which the exit code is 1 (default: 0)"
    )
    parser.add_argument("--only", nargs="*", default=[f"src/cohort/{room}" for room in ROOMS], metavar="PATH")
    parser.add_argument("--own-tests", action="store_true", help="meet the tests of the mutant's file alone")
    parser.add_argument("--page", type=Path, help="a Markdown page to write")
    words = sys.argv[1:] if arguments is None else list(arguments)
    asked = parser.parse_args(words)
    if importlib.util.find_spec("cosmic_ray") is None:
        parser.error("cosmic-ray is not installed: pip install -c constraints.txt -e '.[dev,mutants]'")
    if not Path("/dev/nvidiactl").exists():
        # as the tests do, before anything imports Triton
        os.environ.setdefault("TRITON_INTERPRET", "1")
    for name in LIBRARIES:
        importlib.import_module(name)
    files = [path for only in asked.only for path in _files(REPOSITORY / only)]
    mutants = sample(files, count=asked.count, seed=asked.seed)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="cohort-mutants-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        compileall.compile_dir(copy / "src", quiet=2)
        for verdict in judge(mutants, copy, own_tests=asked.own_tests):
            verdicts.append(verdict)
            before, after = verdict.mutant.changed
            what = f"{verdict.mutant.path}:{verdict.mutant.line}  {before}  ->  {after}"
            print(f"{verdict.outcome:8} {verdict.seconds:5.1f} s  {what}", flush=True)
    survivors = [verdict for verdict in verdicts if verdict.outcome == "survived"]
    share = 1 - len(survivors) / len(verdicts)
    own = sum(verdict.outcome == "killed" for verdict in verdicts)
    counts = f"{len(verdicts) - len(survivors)} of {len(verdicts)}, {own} by their own tests"
    print(f"\nmutants_killed = {share:.2f} ({counts})")
    for verdict in survivors:
        before, after = verdict.mutant.changed
        print(f"survived: {verdict.mutant.path}:{verdict.mutant.line}\n    - {before}\n    + {after}")
    if asked.page is not None:
        asked.page.write_text(page(verdicts, command=" ".join(["python -m tools.mutants", *words])), encoding="utf-8")
    return 1 if share < asked.least else 0


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*.py") if each.name != "__init__.py")


if __name__ == "__main__":
    sys.exit(main())
