"""A section is made from a settings dataclass: names, defaults, bounds, words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from cohort.core.errors import Problem
from cohort.core.setting_fields import Refusal, checked, choice, flag, share, whole
from cohort.core.source_location import Place
from cohort.tasks.fields import REFUSAL_TYPE, refusal_of, refusals_of, section_with, setting


@dataclass(frozen=True, kw_only=True)
class Settings:
    part: float = share(0.5, "a part")
    count: int = whole(2, "a count")
    most: int | None = whole(None, "a limit", null="for all")
    switch: bool = flag(True, "a switch")
    word: str = choice("auto", "a word", options=("auto", "never"))
    names: Mapping[str, str] = checked(
        dict,
        "names",
        kind=dict[str, str],
        allowed="names without a dot",
        check=lambda names: [
            Refusal(found=name, allowed="names without a dot", hint="Rename it.", at=(name,))
            for name in names
            if "." in name
        ],
    )
    other: int = 3


SECTION = section_with(Settings, own=(str, setting("x", allowed="text", description="a key of the section's own")))


def test_the_defaults_are_those_of_the_settings() -> None:
    values = SECTION().model_dump()
    assert values.pop("own") == "x"
    assert Settings(**values) == Settings()
    assert list(SECTION.model_fields) == ["own", "part", "count", "most", "switch", "word", "names"]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("part", 0, "greater_than"),
        ("part", True, "float_type"),
        ("count", 0, "greater_than_equal"),
        ("count", 1.5, "int_type"),
        ("most", 0, "greater_than_equal"),
        ("switch", "true", "bool_type"),
        ("word", "nevr", "literal_error"),
        ("names", {"a.b": "c"}, REFUSAL_TYPE),
        ("other", 4, "extra_forbidden"),
    ],
)
def test_a_section_refuses_what_the_settings_refuse(key: str, value: object, kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SECTION.model_validate({key: value})
    assert [detail["type"] for detail in caught.value.errors()] == [kind]


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert SECTION.model_validate({"count": 1e3}).model_dump()["count"] == 1000


def test_the_schema_has_the_words() -> None:
    schema = SECTION.model_json_schema()["properties"]
    assert schema["part"]["description"] == "a part"
    assert schema["part"]["allowed"] == "a share above 0, at most 1"
    assert schema["word"]["enum"] == ["auto", "never"]


def test_a_check_says_where_inside_the_value() -> None:
    with pytest.raises(ValidationError) as caught:
        SECTION.model_validate({"names": {"a.b": "c"}})
    (detail,) = caught.value.errors()
    assert [refusal.at for refusal in refusals_of(detail["ctx"])] == [("a.b",)]


def test_a_problem_of_the_settings_becomes_one_below_the_section() -> None:
    problem = Problem(where=Place(key=("dataset", "columns", "a")), found="1", allowed="2", hint="Write 2.")
    assert refusal_of(problem) == Refusal(found="1", allowed="2", hint="Write 2.", at=("columns", "a"))
