"""What users install: the wheel holds the package and the quickstart, the sdist what builds it, and neither more.

``make test-wheel`` installs it into an empty environment outside of the repository and runs the whole demo there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=REPOSITORY, check=True)
    return folder


def test_the_wheel_holds_the_package_and_the_quickstart(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 8 * MIB
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cohort"}
    tracked = subprocess.run(
        ["git", "ls-files", "src/cohort"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert {name.removeprefix("src/") for name in tracked.stdout.split()} <= names
    assert {"cohort/quickstart/task.yaml", "cohort/quickstart/base_model/model.safetensors"} <= names
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_the_sdist_builds_the_same_wheel(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"src", "docs", "examples", "README.md", "LICENSE", "NOTICE", "pyproject.toml"} <= tops
    assert not tops & {"tests", "benchmarks", ".demo", "runs", ".venv"}


def test_an_installed_wheel_finds_its_quickstart(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from cohort.cli import demo; print(demo.__file__); print(demo.quickstart_folder())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    module, quickstart = found.stdout.split()
    assert Path(module) == tmp_path / "site" / "cohort" / "cli" / "demo.py"
    assert Path(quickstart) == tmp_path / "site" / "cohort" / "quickstart"
