"""Result files name the Cohort and the CPU of their numbers; those from before they did are a closed list."""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure, origins
from benchmarks.origins import (
    NOT_RECORDED,
    digest_of,
    origin,
    problem_of,
    recorded_before,
    sources_digest,
    without_machine_paths,
)
from cohort.version import __version__
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
COMPLETE: dict[str, Any] = {
    "cohort": {"version": "0.1.0", "commit": COMMIT, "dirty": False},
    "machine": {"cpu": "AMD EPYC 7R13"},
}
# the day from which results name their commit
FIRST_DAY_WITH_COMMITS = "2026-11-23"


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}


def test_every_result_file_passes(results: dict[str, dict[str, Any]]) -> None:
    before = recorded_before()
    assert [found for name, result in results.items() if (found := problem_of(name, result, before=before))] == []


def test_the_list_of_files_without_a_commit_only_shrinks(results: dict[str, dict[str, Any]]) -> None:
    before = recorded_before()
    assert before <= results.keys()
    assert len(before) <= 115
    assert {name for name in before if results[name]["date"] > FIRST_DAY_WITH_COMMITS} == set()
    for name in before:
        assert set(results[name]["cohort"]) == {"version", "recorded_in"}
        assert results[name]["machine"]["cpu"] == NOT_RECORDED


@pytest.mark.parametrize(
    ("changes", "before", "found"),
    [
        ({}, (), None),
        ({"cohort": {}}, (), "no cohort.version"),
        ({"cohort": {"version": "0.1.0"}}, (), "needs cohort.commit"),
        ({"cohort": {"version": "0.1.0", "commit": "0123456", "dirty": False}}, (), "needs cohort.commit"),
        ({"cohort": {"version": "0.1.0", "commit": COMMIT}}, (), "cohort.dirty"),
        ({"cohort": {"version": "0.1.0", "sources": "12"}}, (), "python -m benchmarks.origins --name"),
        ({"cohort": {"version": "0.1.0", "recorded_in": COMMIT}}, (), "which only the files in recorded_before.txt"),
        ({"cohort": {"version": "0.1.0", "recorded_in": COMMIT}}, ("why",), None),
        ({"machine": {}}, (), "no machine.cpu"),
        ({"machine": {"cpu": NOT_RECORDED}}, (), "no machine.cpu"),
        ({}, ("why",), "remove its line"),
        ({"command": "python -m why --out /tmp/why.json"}, (), "names /tmp/why.json, a path of one machine"),
        ({"command": "python -m why --data=~/rows"}, ("why",), "write FOLDER"),
        ({"command": "python -m why --model a/b --part x/y"}, (), None),
    ],
)
def test_what_a_file_lacks_is_said(changes: dict[str, Any], before: tuple[str, ...], found: str | None) -> None:
    problem = problem_of("why", {**COMPLETE, **changes}, before=frozenset(before))
    assert problem is None if found is None else found in str(problem)


def test_what_a_benchmark_writes_passes(tmp_path: Path) -> None:
    measure.write_result(tmp_path / "why.json", question="Why?", headline={"ratio": 1.0}, rows=[{"ratio": 1.0}])
    result = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))
    assert result["cohort"]["version"] == __version__
    assert result["machine"]["cpu"]
    # an unpacked release has no git: its digest waits for a commit
    allowed = {None} if (REPOSITORY / ".git").exists() else {problem_of("why", result, before=frozenset())}
    assert problem_of("why", result, before=frozenset()) in allowed


def test_a_recorded_command_has_no_path_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("benchmarks.steps.lora_tax", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    given = [
        "--shape",
        "8b",
        "--out",
        str(tmp_path / "why.json"),
        "--data",
        str(tmp_path),
        f"--model={tmp_path}",
        "a/b",
    ]
    monkeypatch.setattr(sys, "argv", ["lora_tax.py", *given])
    measure.write_result(tmp_path / "why.json", question="Why?", headline={"ratio": 1.0}, rows=[{"ratio": 1.0}])
    command = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))["command"]
    assert command == "python -m benchmarks.steps.lora_tax --shape 8b --data FOLDER --model=FOLDER a/b"


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        (["--out=/tmp/a.json", "--gpu"], "--gpu"),
        (["--gpu", "--out"], "--gpu"),
        (["~/rows", "../models"], "FOLDER ../models"),
        (["--shape", "8b"], "--shape 8b"),
    ],
)
def test_what_is_left_out_of_a_command(arguments: list[str], recorded: str) -> None:
    assert without_machine_paths(arguments) == recorded


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit, whose sources are two files."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    folder = tmp_path / "clone"
    for name in ("src/cohort/a.py", "benchmarks/b.py", "benchmarks/results/c.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    _git(tmp_path, "init", "-q", str(folder))
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def test_sources_that_differ_from_the_commit_are_dirty_and_results_are_no_sources(clone: Path) -> None:
    commit = _git(clone, "rev-parse", "HEAD")
    (clone / "benchmarks/results/d.json").write_text("{}")
    assert origin(clone) == {"version": __version__, "commit": commit, "dirty": False}
    (clone / "src/cohort/new.py").write_text("")
    assert origin(clone) == {"version": __version__, "commit": commit, "dirty": True}


def test_a_digest_that_was_recorded_without_git_finds_its_commit(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _git(clone, "rev-parse", "HEAD")
    copy = tmp_path / "copy"
    shutil.copytree(clone, copy, ignore=shutil.ignore_patterns(".git"))
    (clone / "src/cohort/a.py").write_text("# changed since\n")
    _git(clone, "commit", "-q", "-a", "-m", "second")
    (copy / "benchmarks/b.py").write_text("# changed on the machine that measured\n")
    (clone / "benchmarks/recorded_before.txt").write_text("")
    monkeypatch.setattr(origins, "REPOSITORY", clone)
    monkeypatch.setattr(origins, "RESULTS", clone / "benchmarks/results")
    monkeypatch.setattr(origins, "RECORDED_BEFORE", clone / "benchmarks/recorded_before.txt")
    monkeypatch.setattr("sys.argv", ["origins.py", "--name"])
    (clone / "benchmarks/results/c.json").unlink()
    unchanged = {path: _git(clone, "rev-parse", f"{first}:{path}") for path in ("src/cohort/a.py", "benchmarks/b.py")}
    for name, digest in (("same", digest_of(unchanged)), ("changed", origin(copy)["sources"])):
        result = {**COMPLETE, "cohort": {"version": "0.1.0", "sources": digest}}
        (clone / f"benchmarks/results/{name}.json").write_text(json.dumps(result))
    assert origins.main() == 0
    same, changed = (json.loads((clone / f"benchmarks/results/{n}.json").read_text()) for n in ("same", "changed"))
    assert (same["cohort"]["commit"], same["cohort"]["dirty"]) == (first, False)
    assert (changed["cohort"]["commit"], changed["cohort"]["dirty"]) == (_git(clone, "rev-parse", "HEAD"), True)
    assert "changed: " in capsys.readouterr().out


def test_the_digest_of_files_is_that_of_the_commit_that_holds_them(clone: Path) -> None:
    blobs = {path: _git(clone, "rev-parse", f"HEAD:{path}") for path in ("src/cohort/a.py", "benchmarks/b.py")}
    assert sources_digest(clone) == digest_of(blobs)
