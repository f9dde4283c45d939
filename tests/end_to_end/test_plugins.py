"""An exit rule and a sampler that stand in this file alone work from a task file to the report."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.events import StepDone
from cohort.core.setting_fields import whole
from cohort.engine.tune import resume, tune
from cohort.tasks.loading import load_task
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit import EarlyExitSettings, ExitRule, Observation, Rule, RuleSettings, Verdict
from cohort.tuning.parameters import Configuration
from cohort.tuning.samplers import Sampler, SamplerKind, SearchBudget
from cohort.tuning.space import SearchSpace
from tests.cli.command import cohort
from tests.core.plugin_packages import install
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.tuning.loss_curves import BY_RANK

UNLUCKY = Reason("unlucky number", label="drew an unlucky number", sentence="The trial's number is unlucky.")


@dataclass(frozen=True, kw_only=True)
class LotterySettings(RuleSettings):
    """Which numbers are unlucky."""

    unlucky: int = whole(2, "trials whose number this divides are stopped", minimum=2)


class LotteryRule(Rule):
    """Stops every n-th trial at its first evaluation."""

    name = "lottery"

    def __init__(self, unlucky: int) -> None:
        self._unlucky = unlucky

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        trial_id = observation.trial_id
        if isinstance(observation.event, StepDone) or trial_id % self._unlucky:
            return ()
        numbers = {"unlucky": self._unlucky}
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=UNLUCKY, numbers=numbers),)


EXIT_RULE = ExitRule(
    name="lottery",
    summary="Trials with an unlucky number.",
    settings=LotterySettings,
    build=lambda settings, common: (LotteryRule(settings.unlucky),),
    reasons=(UNLUCKY,),
    kept_share=lambda settings, common, num_trials: 1 - 1 / settings.unlucky,
)


class LastFirst(Sampler):
    """The grid from its end, as far as the budget goes."""

    def __init__(self, space: SearchSpace, budget: SearchBudget) -> None:
        found = tuple(space.configurations())[::-1][: budget.trials]
        self._left = found

    def propose(self, num: int) -> tuple[Configuration, ...]:
        proposed, self._left = self._left[:num], self._left[num:]
        return proposed

    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        pass


SAMPLER = SamplerKind(name="last_first", summary="The grid from its end.", build=LastFirst)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    rules = {"lottery": f"{__name__}:EXIT_RULE"}
    install(monkeypatch, site, package="cohort-lottery", group="cohort.exit_rules", points=rules)
    samplers = {"last_first": f"{__name__}:SAMPLER"}
    install(monkeypatch, site, package="cohort-last-first", group="cohort.samplers", points=samplers)
    return write_inputs(tmp_path / "inputs")


SECTIONS: dict[str, Any] = {
    "early_exit": {"rule": "lottery", "unlucky": 3, "warmup_fraction": 0.25},
    "search": {"sampler": "last_first", "trials": 4, "space": {"r": [2, 4, 8], "learning_rate": [1e-3, 1e-2]}},
}


def test_from_a_task_file_to_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tiny_task(folder, **{**SECTIONS, "early_exit": {**SECTIONS["early_exit"], "select_fraction": 0.5}})
    keys = {"unlucky": 3, "warmup_fraction": 0.25, **BY_RANK}
    assert task.early_exit_settings() == EarlyExitSettings(rule="lottery", **keys)
    assert task.early_exit_settings().kept_share() == pytest.approx(2 / 3)
    assert "unlucky: 3" in task.resolved_yaml()
    run = folder / "run"
    tune(task, run)
    with (run / "results.csv").open() as file:
        rows = {int(row["trial"]): row for row in csv.DictReader(file)}
    assert {number: row["reason"] for number, row in rows.items()} == {
        0: "unlucky number", 1: "completed", 2: "completed", 3: "unlucky number",
    }  # fmt: skip
    assert [rows[number]["r"] for number in range(4)] == ["8", "8", "4", "4"], "from the end of the grid"
    (run / "report.html").unlink()
    code, out, _ = cohort(capsys, "report", run)
    assert code == 0
    page = Path(out.strip()).read_text()
    assert "drew an unlucky number" in page
    assert ".o-unlucky-number{--tone:#" in page
    resume(run)  # the recorded decisions are those that the rule takes again


def test_the_schema_and_the_command_line_know_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", "--schema")
    assert code == 0
    sections = json.loads(out)["$defs"]
    early_exit = sections["EarlyExitSection"]["properties"]
    assert early_exit["rule"]["enum"][0] == "patterns"
    assert early_exit["rule"]["enum"][-1] == "lottery"
    assert early_exit["unlucky"] == {
        "allowed": "a whole number of at least 2, at most 1,000,000,000", "default": 2, "minimum": 2,
        "maximum": 1_000_000_000, "title": "Unlucky", "type": "integer",
        "description": "lottery: trials whose number this divides are stopped",
    }  # fmt: skip
    assert sections["SearchSection"]["properties"]["sampler"]["enum"] == ["grid", "random", "tpe", "last_first"]
    (folder / "task.yaml").write_text("base_model: model\ndataset: {train: train.jsonl}\n")
    options = ["--early_exit.rule", "lottery", "--early_exit.unlucky", "5", "--sampler", "last_first"]
    task = load_task(folder / "task.yaml", options)
    assert task.early_exit_settings() == EarlyExitSettings(rule="lottery", unlucky=5)
    assert task.search.sampler == "last_first"


def test_mistakes_in_its_keys_are_named_with_all_others(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        tiny_task(folder, early_exit={"rule": "lottery", "unlucky": 1, "window": 1}, search={"sampler": "last_frist"})
    problems = {str(problem.where): problem for problem in caught.value.problems}
    assert problems["task: early_exit.unlucky"].allowed == "a whole number of at least 2, at most 1,000,000,000"
    assert problems["task: early_exit.window"].found == "1"
    assert problems["task: search.sampler"].hint == "Did you mean sampler: last_first?"
    with pytest.raises(InputError, match=r"unknown key 'unlucki'; allowed: .*unlucky.*Did you mean early_exit.unlucky"):
        tiny_task(folder, early_exit={"rule": "lottery", "unlucki": 3})
    with pytest.raises(InputError, match="unknown key 'unlucky'"):
        tiny_task(folder, early_exit={"rule": "asha", "unlucky": 3})


def test_a_broken_package_stops_only_the_tasks_that_use_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"broken": "cohort_broken_rules:RULE"}
    install(monkeypatch, tmp_path / "more", package="broken-rules", group="cohort.exit_rules", points=points)
    assert tiny_task(folder).early_exit.rule == "patterns"
    assert tiny_task(folder, early_exit={"rule": "lottery"}).early_exit_settings().unlucky == 2
    with pytest.raises(InputError, match=r"the installed package broken-rules: .*No module named 'cohort_broken"):
        tiny_task(folder, early_exit={"rule": "broken"})
    code, _, shown = cohort(capsys, "check", "--schema")
    assert code == 2
    assert "broken-rules" in shown
    assert "Traceback" not in shown
