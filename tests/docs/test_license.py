"""The licence is named once, its files are there and go into every package."""

from __future__ import annotations

import tomllib

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_licence_is_the_full_text_of_what_the_package_names() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_files_of_the_licence_are_packed() -> None:
    packed = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in PROJECT["project"]["license-files"]:
        assert (REPOSITORY / name).is_file()
        assert f"/{name}" in packed


def test_the_notices_name_every_example_and_every_file_of_recorded_data() -> None:
    notices = (REPOSITORY / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    folders = [path for path in (REPOSITORY / "examples").iterdir() if path.is_dir()]
    data = list((REPOSITORY / "benchmarks").glob("*.json"))
    for path in [*folders, *data]:
        assert path.relative_to(REPOSITORY).as_posix() in notices, path
