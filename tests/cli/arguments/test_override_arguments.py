"""Task-file keys on the command line may stand anywhere."""

from __future__ import annotations

import pytest

from cohort.cli.arguments.override_arguments import take_overrides


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
