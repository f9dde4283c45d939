"""The early_exit section is made from the rules: their keys, bounds and words, and those of packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from cohort.core.setting_fields import whole
from cohort.tasks.fields import refusals_of
from cohort.tasks.sections.early_exit_section import EarlyExitSection, early_exit_section, is_plugin_key
from cohort.tuning.early_exit.lookup import EXIT_RULES, built_in_keys
from cohort.tuning.early_exit.rule import ExitRule, RuleSettings
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.core.plugin_packages import install


@dataclass(frozen=True, kw_only=True)
class LuckySettings(RuleSettings):
    """Settings of a rule of another package."""

    unlucky: int = whole(3, "trials whose number this divides are stopped", minimum=2)


LUCKY = ExitRule(name="lucky", summary="", build=lambda settings, common: (), settings=LuckySettings)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(
        monkeypatch, tmp_path, package="lucky-rules", group="cohort.exit_rules", points={"lucky": f"{__name__}:LUCKY"}
    )


def found_in(value: dict[Any, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        early_exit_section(value)
    details = caught.value.errors()
    told = [refusal.found for detail in details for refusal in refusals_of(detail.get("ctx"))]
    return told or [f"{detail['loc'][0]} {detail['type']}" for detail in details]


def test_its_keys_and_defaults_are_those_of_the_rules() -> None:
    section = EarlyExitSection()
    assert section.settings() == EarlyExitSettings()
    assert set(EarlyExitSection.model_fields) == {"rule", *built_in_keys()}
    # a section made already, e.g. by a task from Python, is taken as it is
    assert early_exit_section(section) is section


@pytest.mark.parametrize("rule", [entry.name for entry in EXIT_RULES.built_in()])
def test_a_rule_is_chosen_by_its_name_with_the_keys_of_others_left_where_they_are(rule: str) -> None:
    section = early_exit_section({"rule": rule, "patience": 7, "warmup_fraction": 0.1})
    assert section.settings() == EarlyExitSettings(rule=rule, patience=7, warmup_fraction=0.1)


def test_a_description_names_the_rules_that_read_a_key() -> None:
    properties = EarlyExitSection.model_json_schema()["properties"]
    assert properties["patience"]["description"].startswith("patience: ")
    assert "halving" in properties["reduction_factor"]["description"]
    assert "asha" in properties["reduction_factor"]["description"]
    assert ": " not in properties["warmup_fraction"]["description"].partition(" (")[0], "all rules read it"
    assert properties["rule"]["enum"] == list(EXIT_RULES.names())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"rule": "medain"}, ["'medain'"]),
        ({"rule": 3}, ["rule string_type"]),
        ({"windows": 2}, ["windows extra_forbidden"]),
        ({"rule": "asha", "reduction_factor": 1}, ["reduction_factor greater_than_equal"]),
    ],
)
def test_wrong_keys_and_values_are_refused(value: dict[Any, Any], told: list[str]) -> None:
    assert found_in(value) == told


@pytest.mark.usefixtures("plugin")
def test_a_rule_of_a_package_brings_its_keys() -> None:
    section = early_exit_section({"rule": "lucky", "unlucky": 5, "ema_weight": 0.5})
    assert section.settings() == EarlyExitSettings(rule="lucky", unlucky=5, ema_weight=0.5)
    assert isinstance(section, EarlyExitSection)
    assert is_plugin_key("unlucky")
    assert not is_plugin_key("patience")
    assert "unlucky" in EarlyExitSection.model_json_schema()["properties"]
    # under another rule the key is unknown, as any other
    assert found_in({"rule": "asha", "unlucky": 5}) == ["unlucky extra_forbidden"]


@pytest.mark.usefixtures("plugin")
def test_mistakes_in_the_keys_of_a_package_are_told_in_its_words() -> None:
    assert found_in({"rule": "lucky", "unlucky": 1}) == ["1"]
    # raised within the validation of the whole task, which collects it
    with pytest.raises(PydanticCustomError) as caught:
        early_exit_section({"rule": "lucky", "unluckyy": 3, "no_key": 4})
    first, second = refusals_of(caught.value.context)
    assert (first.found, first.at) == ("the unknown key 'unluckyy'", ("unluckyy",))
    assert first.hint == "Did you mean early_exit.unlucky? Rename it."
    assert (second.found, second.hint) == ("the unknown key 'no_key'", "Remove it.")


def test_without_packages_there_is_no_key_of_theirs() -> None:
    assert not is_plugin_key("unlucky")
    assert not is_plugin_key(0)
    assert "unlucky" not in EarlyExitSection.model_json_schema()["properties"]
