"""The rules there are: keys and reasons are one flat space each, and a package adds to them without changing ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.setting_fields import setting_fields, whole
from cohort.tuning.decisions import COMPLETED, FAILED, IMPROVED, NON_FINITE, Reason
from cohort.tuning.early_exit.lookup import DEFAULT_RULE, EXIT_RULES, built_in_keys, reason_of, reasons
from cohort.tuning.early_exit.rule import UNDERPERFORMING, CommonSettings, ExitRule, RuleSettings
from cohort.tuning.interventions import BY_USER
from tests.core.plugin_packages import install


def _rule(name: str, **fields: Any) -> ExitRule:
    return ExitRule(name=name, summary="", build=lambda settings, common: (), **fields)


@dataclass(frozen=True, kw_only=True)
class OtherPatience(RuleSettings):
    """A key that the rule ``patience`` has, with another default."""

    patience: int = whole(9, "another thing")


@dataclass(frozen=True, kw_only=True)
class NamedRule(RuleSettings):
    """A key that chooses the rule itself."""

    rule: int = whole(1, "no number")


GOOD = _rule("good", reasons=(Reason("good riddance", label="let go"), UNDERPERFORMING))
CLASHING = _rule("clashing", settings=OtherPatience)
TAKEN_KEY = _rule("taken_key", settings=NamedRule)
SAME_REASON = _rule("same_reason", reasons=(Reason("diverging", label="something else"),))


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def _offer(name: str, value: str) -> None:
        install(monkeypatch, tmp_path / name, package="lucky-rules", group="cohort.exit_rules", points={name: value})

    return _offer


def test_keys_that_rules_share_are_declared_once() -> None:
    fields: dict[str, Any] = {}
    for entry in EXIT_RULES.built_in():
        for name, field in setting_fields(entry.settings).items():
            assert fields.setdefault(name, field) is field, f"two rules declare {name}"


def test_the_keys_of_a_task_file_are_those_of_all_rules() -> None:
    keys = built_in_keys()
    expected = set(setting_fields(CommonSettings)).union(*(setting_fields(e.settings) for e in EXIT_RULES.built_in()))
    assert set(keys) == expected
    assert {"warmup_fraction", "patience", "reduction_factor"} <= expected
    assert "rule" not in keys, "it is the key that chooses among them"
    assert EXIT_RULES.find(DEFAULT_RULE) is not None


def test_every_reason_of_the_record_is_known_with_its_look() -> None:
    known = reasons()
    assert len({str(reason) for reason in known}) == len(known)
    assert {IMPROVED, COMPLETED, FAILED, NON_FINITE, *BY_USER.values()} <= set(known)
    for entry in EXIT_RULES.built_in():
        for reason in entry.reasons:
            assert reason_of(str(reason)) is reason
    # a run of a rule that is gone is still shown
    gone = reason_of("stopped by a rule of long ago")
    assert (str(gone), gone.is_comparison) == ("stopped by a rule of long ago", False)


def test_a_package_adds_a_name_and_its_reasons(offer: Any) -> None:
    assert reason_of("good riddance").label == "good riddance"
    offer("good", f"{__name__}:GOOD")
    assert EXIT_RULES.names()[-1] == "good"
    assert EXIT_RULES.find("good") is GOOD
    assert GOOD.reasons[0] in reasons()
    # one of ours that it uses as well is listed once
    assert sum(reason is UNDERPERFORMING for reason in reasons()) == 1
    assert reason_of("good riddance").label == "let go"


@pytest.mark.parametrize(
    ("name", "constant", "why"),
    [
        ("clashing", "CLASHING", "its setting 'patience' means something else in Cohort"),
        ("taken_key", "TAKEN_KEY", "its setting 'rule' means something else in Cohort"),
        ("same_reason", "SAME_REASON", "its reason 'diverging' means something else in Cohort"),
    ],
)
def test_what_means_something_else_is_refused(offer: Any, name: str, constant: str, why: str) -> None:
    offer(name, f"{__name__}:{constant}")
    with pytest.raises(InputError) as caught:
        EXIT_RULES.find(name)
    assert why in caught.value.problems[0].found
    with pytest.raises(InputError, match="lucky-rules"):
        reasons()


def test_a_broken_package_costs_a_finished_run_only_its_look(offer: Any) -> None:
    offer("gone", "no_such_module_anywhere:RULE")
    assert str(reason_of("some reason")) == "some reason"
    assert reason_of("diverging").shape == "up"
