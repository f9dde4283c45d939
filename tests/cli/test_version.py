"""The version that the package says is the one that it is built with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import cohort
from cohort.version import __version__


def test_the_build_reads_the_version_from_its_file(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    source = (repository / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert f'__version__ = "{__version__}"' in source
    assert cohort.__version__ == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
