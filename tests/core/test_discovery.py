"""What a folder's modules offer is found by their names alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cohort.core.discovery import modules_of, offered_in


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # a name of its own for each test: what one imports stays in sys.modules
    folder = tmp_path / f"rules_of_{request.node.name[:30]}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "second.py").write_text("RULE = 2")
    (folder / "first.py").write_text("RULE = 1")
    (folder / "protocol.py").write_text("class Rule: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_modules_that_offer_the_constant_are_found_in_the_order_of_their_names(package: str) -> None:
    assert list(offered_in(package, "RULE").items()) == [("first", 1), ("second", 2)]


def test_names_are_listed_without_an_import(package: str) -> None:
    assert modules_of(package) == ("first", "protocol", "second")
    assert f"{package}.first" not in sys.modules


def test_what_is_no_package_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="is no package"):
        modules_of("json.decoder")
