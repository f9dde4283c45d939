"""Wrong values of options, in the words of the other errors."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["tune", "--json"], "MissingParameter", "Missing argument 'TASK.yaml'"),
        (["status", "runs/a", "--bogus", "--json"], "NoSuchOption", "No such option: --bogus"),
        (["keys", "revoke", "--json"], "MissingParameter", "Missing argument"),
        (["nothing", "--json"], "UsageError", "No such command 'nothing'"),
        (["--bogus", "--json"], "NoSuchOption", "No such option: --bogus"),
        (["status", "--json", "runs/a", "--runs", "x"], "NoSuchOption", "No such option: --runs"),
    ],
)
def test_json_has_the_errors_of_arguments_as_well(arguments: list[str], kind: str, message: str) -> None:
    result = CliRunner().invoke(build_app(), arguments)
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == error["exit_code"] == 2
    assert (error["type"], result.stderr) == (kind, "")
    assert message in error["message"]
