"""`make bench` names benchmarks that are there, and result files have what the tables of measured numbers need."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch

from benchmarks.measure import started_as
from benchmarks.run import QUESTIONS, main
from tests.conftest import REPOSITORY
from tools.measured_table import script_of

FOLDER = REPOSITORY / "benchmarks"
RESULTS = sorted((FOLDER / "results").glob("*.json"))


@pytest.mark.parametrize("name", sorted({name for name, _, _ in QUESTIONS}))
def test_every_benchmark_is_there(name: str) -> None:
    assert (FOLDER / f"{name.replace('.', '/')}.py").is_file()


def test_commands_name_modules() -> None:
    """They import each other from the repository's root, so ``python benchmarks/x.py`` does not start them."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("src/**/*.md")]
    named = []
    for path in [*pages, REPOSITORY / "Makefile", *FOLDER.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert "python benchmarks/" not in text, path
        named += [(path, name) for name in re.findall(r"-m (benchmarks[.\w]*\w)", text)]
    assert len(named) > 20
    for path, name in named:
        assert (REPOSITORY / f"{name.replace('.', '/')}.py").is_file(), (path, name)


def test_every_benchmark_imports_from_the_root_and_asks_for_its_gpu(tmp_path: Path) -> None:
    files = {".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in sorted(FOLDER.rglob("*.py"))}
    asking = {name for name, path in files.items() if "import need_gpu" in path.read_text(encoding="utf-8")}
    assert asking >= {name for name, needs, _ in QUESTIONS if needs == "cuda"}
    required = {f"kernels.gpu_variants_{kind}": ["r.json"] for kind in ("few_adapters", "packed_linear")}
    required["steps.checkpoint_overhead"] = ["--shape", "1b"]
    # what python -m finds in the repository's root; no file is looked for in the working directory
    code = f"""
import gc
gc.disable()  # no import makes garbage
import sys, importlib, torch
torch.cuda.is_available = lambda: False
sys.path[0] = {str(REPOSITORY)!r}
modules = {{name: importlib.import_module("benchmarks." + name) for name in {sorted(files)!r}}}
for name, arguments in {[(name, required.get(name, [])) for name in sorted(asking)]!r}:
    sys.argv = [name.rpartition(".")[2] + ".py", *arguments]
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
        assert f"{name.rpartition('.')[2]}.py: this measures an NVIDIA GPU" in done.stderr


def test_a_result_records_the_command_that_measures_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("benchmarks.steps.lora_tax", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/steps/lora_tax.py", "--shape", "8b"])
    assert started_as() == ["-m", "benchmarks.steps.lora_tax", "--shape", "8b"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_files_are_complete(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["question"].endswith("?")
    date.fromisoformat(result["date"])
    assert "python" in result["command"]
    assert result["machine"]
    assert "torch" in result["versions"]
    assert result["rows"]
    assert [path.stem for path in FOLDER.glob("*/*.py") if path.stem == script_of(result["command"])]
    assert all(isinstance(value, int | float) for value in result["headline"].values())


def test_what_this_machine_cannot_measure_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def start(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append(command[2].removeprefix("benchmarks.") if command[1] == "-m" else Path(command[1]).stem)
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
