"""Task-file keys on the command line may stand anywhere."""

from __future__ import annotations

import pytest
import typer

from cohort.cli.arguments.override_arguments import VERBS_WITH_OVERRIDES, take_overrides
from cohort.cli.main import build_app


@pytest.mark.parametrize(
    ("arguments", "own", "overrides"),
    [
        (["tune", "t.yaml", "-o", "r"], ["tune", "t.yaml", "-o", "r"], []),
        (["tune", "--seed", "3", "t.yaml"], ["tune", "t.yaml"], ["--seed", "3"]),
        (["tune", "t.yaml", "--a.b=c", "--json"], ["tune", "t.yaml", "--json"], ["--a.b=c"]),
        (["tune", "--output", "--x", "t.yaml"], ["tune", "--output", "--x", "t.yaml"], []),
        (["tune", "t.yaml", "--lr", "-1"], ["tune", "t.yaml"], ["--lr", "-1"]),
        (["tune", "t.yaml", "--a", "--b", "1"], ["tune", "t.yaml"], ["--a", "--b", "1"]),
        (["status", "r", "--seed", "3"], ["status", "r", "--seed", "3"], []),
        (["--help"], ["--help"], []),
    ],
)
def test_overrides_may_stand_anywhere(arguments: list[str], own: list[str], overrides: list[str]) -> None:
    assert take_overrides(arguments) == (own, overrides)


@pytest.mark.parametrize("verb", VERBS_WITH_OVERRIDES)
def test_no_option_of_a_verb_is_taken_for_an_override(verb: str) -> None:
    group = typer.main.get_command(build_app())
    assert isinstance(group, typer.core.TyperGroup)
    options = [name for option in group.commands[verb].params for name in option.opts if name.startswith("-")]
    assert options
    for name in options:
        assert take_overrides([verb, name, "value"])[1] == []
