"""A group of verbs: each is called by its name, and the group alone prints what it has."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cohort.cli.arguments.verb_group import build_group


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_a_group_says_what_it_has(words: list[str]) -> None:
    group = build_group({"add": lambda: None, "list": lambda: None}, summary="What this is about.")
    shown = CliRunner().invoke(group, words).output
    assert "What this is about." in shown
    assert shown.index("add") < shown.index("list")


def test_a_verb_is_called_by_its_name() -> None:
    called: list[str] = []
    group = build_group({"add": lambda: called.append("add"), "list": lambda: called.append("list")}, summary="")
    assert CliRunner().invoke(group, ["list"]).exit_code == 0
    assert called == ["list"]
