"""`make bench` names benchmarks that are there, and result files have what the README's table needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch

from benchmarks.run import QUESTIONS, main
from tests.conftest import REPOSITORY

RESULTS = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("name", sorted({name for name, _, _ in QUESTIONS}))
def test_every_benchmark_is_there(name: str) -> None:
    assert (REPOSITORY / "benchmarks" / f"{name}.py").is_file()


def test_commands_name_scripts() -> None:
    """They import each other by name, as scripts of one folder, so ``python -m`` does not start them."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("src/**/*.md")]
    for path in [*pages, *(REPOSITORY / "benchmarks").glob("*.py")]:
        assert "-m benchmarks" not in path.read_text(encoding="utf-8"), path


def test_every_benchmark_starts_from_any_folder_and_asks_for_its_gpu(tmp_path: Path) -> None:
    folder = REPOSITORY / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    asking = {name for name in names if "import need_gpu" in (folder / f"{name}.py").read_text(encoding="utf-8")}
    assert asking >= {name for name, needs, _ in QUESTIONS if needs == "cuda"}
    required = {"gpu_variants_few_adapters": ["r.json"], "gpu_variants_packed_linear": ["r.json"]}
    required["checkpoint_overhead"] = ["--shape", "1b"]
    # as a script's own folder is on its path, and of the repository only the package
    code = f"""
import sys, importlib, torch
torch.cuda.is_available = lambda: False
sys.path[0] = {str(folder)!r}
modules = {{name: importlib.import_module(name) for name in {names!r}}}
for name, arguments in {[(name, required.get(name, [])) for name in sorted(asking)]!r}:
    sys.argv = [name + ".py", *arguments]
    try:
        modules[name].main()
    except SystemExit as end:
        assert end.code == 2, (name, end.code)
    else:
        raise AssertionError(name)
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in asking:
        assert f"{name}.py: this measures an NVIDIA GPU" in done.stderr


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_files_are_complete(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["question"].endswith("?")
    date.fromisoformat(result["date"])
    assert "python" in result["command"]
    assert result["machine"]
    assert "torch" in result["versions"]
    assert result["rows"]
    assert all(isinstance(value, int | float) for value in result["headline"].values())


def test_what_this_machine_cannot_measure_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def start(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append(Path(command[1]).stem)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert main() == 0
    assert started == [*(name for name, needs, _ in QUESTIONS if needs == "cpu"), "measured_table"]
    shown = capsys.readouterr().out
    for name, needs, _ in QUESTIONS:
        assert (f"skipped: {name} " in shown) == (needs == "cuda")
    assert "no GPU that torch can use" in shown
