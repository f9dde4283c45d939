"""Which Cohort a result was measured with: its version and its commit, and the check that every result file says so.

The recorded command starts the measurement again on any machine, so it holds no absolute path.

python -m benchmarks.origins            says which result files name neither
python -m benchmarks.origins --name     names the commit in files that were measured where there was no git

A machine that was lent for a measurement often has the files and no git. The result then holds a digest of the sources
instead, by which ``--name`` finds the commit that has the same ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.version import __version__

__all__ = [
    "NOT_RECORDED",
    "digest_of",
    "main",
    "origin",
    "problem_of",
    "recorded_before",
    "sources_digest",
    "without_machine_paths",
]

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
# Result files from before they named a commit. Only files may leave this list: it is for no new result.
RECORDED_BEFORE = REPOSITORY / "benchmarks" / "recorded_before.txt"
NOT_RECORDED = "not recorded"
# what decides a number: the product and the scripts that measure it
_SOURCES = ("src/cohort", "benchmarks")
# an argument that is a path from the root, or an option with one: /tmp/a.json, ~/a.json, --out=/tmp/a.json
_ABSOLUTE = re.compile(r"(?P<option>[\w-]+=)?[/~].*", re.DOTALL)
_PLACEHOLDER = "FOLDER"
# how many commits of all branches are looked through for a digest
_COMMITS_SEARCHED = 400


def origin(repository: Path = REPOSITORY) -> dict[str, Any]:
    """Return the version of Cohort and, with git, ``commit`` and ``dirty``; without git, ``sources``, a digest.

    ``dirty`` says that the sources differ from those of the commit.
    """
    found: dict[str, Any] = {"version": __version__}
    commit = _git(repository, "rev-parse", "HEAD")
    if not commit:
        return {**found, "sources": sources_digest(repository)}
    changed = _git(repository, "status", "--porcelain", "--", *_SOURCES, ":!benchmarks/results")
    return {**found, "commit": commit, "dirty": bool(changed)}


def digest_of(blobs: Mapping[str, str]) -> str:
    """Return a digest of sources by path and git's name for their content."""
    lines = [f"{path} {blob}" for path, blob in sorted(blobs.items()) if path.endswith(".py")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def sources_digest(repository: Path) -> str:
    """Return the digest of the Python files of the product and of the benchmarks, as they lie on disk."""
    blobs = {}
    for folder in _SOURCES:
        for path in (repository / folder).rglob("*.py"):
            content = path.read_bytes()
            # git names a blob by the hash of its length and content
            named = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
            blobs[path.relative_to(repository).as_posix()] = named.hexdigest()
    return digest_of(blobs)


def without_machine_paths(arguments: Sequence[str]) -> str:
    """Return a command line as a result records it: without ``--out`` and its value, ``FOLDER`` for absolute paths.

    A path says where files were on one machine. Where the result was written decides no number of it.
    """
    kept: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--out":
            next(waiting, None)
        elif not argument.startswith("--out="):
            kept.append(argument)
    return " ".join(_ABSOLUTE.sub(rf"\g<option>{_PLACEHOLDER}", word) if _absolute(word) else word for word in kept)


def _absolute(argument: str) -> bool:
    return _ABSOLUTE.fullmatch(argument) is not None


def recorded_before() -> frozenset[str]:
    """Return the names of the result files that may do without a commit and the CPU's name."""
    lines = RECORDED_BEFORE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def problem_of(name: str, result: Mapping[str, Any], *, before: frozenset[str]) -> str | None:
    """Return what a result file lacks and how to add it, or None.

    Args:
        name: The file's name without its ending.
        result: What it holds.
        before: Names of files that may lack a commit; they hold ``recorded_in`` instead, the commit that added them.
    """
    cohort, cpu = result.get("cohort", {}), result.get("machine", {}).get("cpu", "")
    if paths := [word for word in result.get("command", "").split() if _absolute(word)]:
        return f"{name}.command names {paths[0]}, a path of one machine: write {_PLACEHOLDER}, leave --out out"
    if not cohort.get("version"):
        return f"{name} has no cohort.version: write results with benchmarks.measure.write_result"
    if "recorded_in" in cohort:
        if name in before:
            return None
        return f"{name} has cohort.recorded_in, which only the files in {RECORDED_BEFORE.name} may have: measure it"
    if name in before:
        return f"{name} names its commit now: remove its line from {RECORDED_BEFORE.name}"
    if "sources" in cohort and "commit" not in cohort:
        return f"{name} was measured without git: run python -m benchmarks.origins --name"
    if len(cohort.get("commit", "")) != 40 or not isinstance(cohort.get("dirty"), bool):
        return f"{name} needs cohort.commit (40 digits) and cohort.dirty (true | false): measure it with write_result"
    if not cpu or cpu == NOT_RECORDED:
        return f"{name} has no machine.cpu: measure it with write_result"
    return None


def _git(repository: Path, *words: str) -> str:
    """Return what git prints, stripped; nothing where there is no git or this is no clone."""
    # a folder inside another project's clone has that project's commits
    if not (repository / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _commit_with(digest: str, repository: Path) -> str | None:
    """Return the newest commit whose sources have this digest."""
    for commit in _git(repository, "rev-list", "--all", f"--max-count={_COMMITS_SEARCHED}").split():
        tree = _git(repository, "ls-tree", "-r", commit, "--", *_SOURCES).splitlines()
        # "100644 blob 3b18e5... <tab> path"
        entries = [line.partition("\t") for line in tree]
        if digest_of({path: head.split()[2] for head, _, path in entries}) == digest:
            return commit
    return None


def _name_commits(repository: Path) -> None:
    """Write the commit into each result that has only a digest; the current one, and dirty, if none has its sources."""
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        cohort = result.get("cohort", {})
        if "sources" not in cohort or "commit" in cohort:
            continue
        commit = _commit_with(cohort["sources"], repository)
        cohort |= {"commit": commit or _git(repository, "rev-parse", "HEAD"), "dirty": commit is None}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{path.stem}: {cohort['commit']}{' with changes' if cohort['dirty'] else ''}")


def main() -> int:
    """Check all result files, or name commits; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", action="store_true", help="find the commits of results that hold a digest")
    if parser.parse_args().name:
        _name_commits(REPOSITORY)
    before = recorded_before()
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    problems = [problem for name in files if (problem := problem_of(name, files[name], before=before))]
    problems += [f"{RECORDED_BEFORE.name}: there is no {name}" for name in sorted(before - files.keys())]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
