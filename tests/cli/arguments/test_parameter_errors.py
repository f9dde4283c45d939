"""Wrong values of options, in the words of the other errors."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cohort.cli.main import build_app


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "runs/a", "--to", "bdd"], "'bdd' is not one of"),
        (["trials", "runs/a", "keep", "abc"], "'abc'; allowed: a whole number"),
        (["run", "a.yaml", "--training.seed", "3"], "No such option: --training.seed. Only `cohort tune` and"),
        (["serve", "runs/a", "--port", "99999"], "'99999'; allowed: at most 65535"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(build_app(), arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Value error" not in result.output
