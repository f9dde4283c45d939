"""Each reward that has a name: what it gives, what it reads of a row, what is no answer."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from cohort.core.setting_fields import SettingField
from cohort.metrics.rewards import PlannedReward, RewardPlan, RewardRunner
from cohort.metrics.rewards.json_shape import schema_problems
from cohort.metrics.rewards.kinds import REWARD_KINDS
from cohort.metrics.rewards.reward import RewardColumnError


def reward(name: str, texts: list[Any], *, options: dict[str, Any] | None = None, **columns: Any) -> list[float | None]:
    kind = REWARD_KINDS.find(name)
    assert kind is not None
    given = kind.with_defaults(options or {})
    assert not any(kind.options[key].refusals(value) for key, value in (options or {}).items())
    assert not kind.together(given)
    columns.setdefault("completion_ids", [list(range(len(str(text).split()))) for text in texts])
    return list(kind.make(given)(completions=texts, **columns))


def test_exact_match_compares_with_the_first_column_of_answers() -> None:
    texts = [" 4 ", "5", "The answer is 4"]
    assert reward("exact_match", texts, answer=["4", 4, "4"]) == [1.0, 0.0, 0.0]
    assert reward("exact_match", texts, options={"pattern": r"\d+"}, solution=["4", "#### 5", "4"]) == [1.0, 1.0, 1.0]
    assert reward("exact_match", ["The Cat"], options={"normalize": True, "column": "t"}, t=["cat!"]) == [1.0]
    # a row without its answer rewards nothing, and says nothing
    assert reward("exact_match", ["4"], answer=[None]) == [None]
    with pytest.raises(
        RewardColumnError, match=r"no column answer or solution or completion in the row.*are completion_ids, q"
    ):
        reward("exact_match", ["4"], q=["?"])


def test_conversations_are_compared_by_the_text_of_their_answer() -> None:
    said = [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]]
    expected = [[{"role": "assistant", "content": "4"}]] * 2
    assert reward("exact_match", said, completion=expected) == [1.0, 0.0]


def test_numbers_are_equal_however_they_are_written() -> None:
    texts = ["so it is 1,234.50", "$1234.5", "none", "2 or 3"]
    assert reward("numeric_answer", texts, answer=["#### 1234.5"] * 3 + ["2"]) == [1.0, 1.0, 0.0, 0.0]
    assert reward("numeric_answer", ["3.1"], options={"tolerance": 0.2}, answer=["3"]) == [1.0]
    assert reward("numeric_answer", ["<a>3</a> 9"], options={"pattern": "<a>(.*?)</a>"}, answer=["3"]) == [1.0]
    assert reward("numeric_answer", ["3"], answer=["no number"]) == [None]


def test_formulas_are_equal_however_they_are_written() -> None:
    plan = RewardPlan(functions=(PlannedReward(name="math_verify", function="math_verify"),), workers=1)
    if find_spec("math_verify") is None:
        (problem,) = RewardRunner(plan).problems()
        assert "math_verify, but the package math-verify is not installed" in problem.found
        assert "cohort-lora[math]" in problem.hint
        return
    texts = [r"It is \boxed{\frac{1}{3}}", r"\boxed{2x+1}", r"\boxed{4}", "words"]
    solutions = [r"\frac{1}{3}", "$1+2x$", "$5$", "$4$"]
    assert reward("math_verify", texts, solution=solutions) == [1.0, 1.0, 0.0, 0.0]
    assert reward("math_verify", ["1"], solution=["words only"]) == [None]


def test_regex_searches_or_matches_the_whole() -> None:
    assert reward("regex", ["abc", "bca"], options={"pattern": "^a"}) == [1.0, 0.0]
    assert reward("regex", ["abc", "a"], options={"pattern": "a", "whole": True}) == [0.0, 1.0]


def test_format_wants_each_part_once_in_order() -> None:
    good = "<think>a\nb</think>\n<answer>4</answer>\n"
    bad = ["x" + good, "<answer>4</answer><think>a</think>", good.replace("b", "<answer>"), good + good, ""]
    assert reward("format", [good, *bad]) == [1.0, *[0.0] * 5]
    assert reward("format", ["<plan>p</plan>"], options={"tags": ["plan"]}) == [1.0]


def test_length_falls_to_nothing_within_slack() -> None:
    texts = ["a " * n for n in (2, 3, 5, 6, 7, 9)]
    options = {"least": 3, "most": 5, "slack": 4}
    assert reward("length", texts, options=options) == [0.75, 1.0, 1.0, 0.75, 0.5, 0.0]
    assert reward("length", ["aaaa", "aaaaa"], options={"most": 4, "unit": "characters"}) == [1.0, 0.0]
    assert reward("length", ["a b", "a b c"], options={"least": 3, "unit": "words"}) == [0.0, 1.0]


SCHEMA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "age": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
        "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", 1]}},
    },
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "Ada", "age": 3, "tags": ["a", 1]}', 1.0),
        ('```json\n{"name": "Ada"}\n```', 1.0),
        ('{"name": "Ada", "age": 3.0}', 1.0),
        ('{"name": "Ada", "age": null}', 1.0),
        ('{"name": "Ada"} thanks', 0.0),
        ('{"age": 3}', 0.0),
        ('{"name": "ada"}', 0.0),
        ('{"name": ""}', 0.0),
        ('{"name": "Ada", "age": -1}', 0.0),
        ('{"name": "Ada", "age": true}', 0.0),
        ('{"name": "Ada", "tags": [true]}', 0.0),
        ('{"name": "Ada", "tags": ["a", "a", "a"]}', 0.0),
        ('{"name": "Ada", "other": 1}', 0.0),
        ("[1]", 0.0),
        ('{"name": NaN}', 0.0),
        ("[" * 100_000, 0.0),
        ("", 0.0),
    ],
)
def test_json_has_the_shape_of_its_schema(text: str, value: float) -> None:
    assert reward("json_schema", [text], options={"schema": SCHEMA}) == [value]


@pytest.mark.parametrize(
    "schema",
    [
        *({"typ": "object"}, {"type": "text"}, {"type": ["object", "text"]}, {"enum": 3}, {"minimum": "1"}, "object"),
        *({"properties": ["a"]}, {"properties": {"a": {"typ": 1}}}, {"items": 3}, {"anyOf": [3]}, {"pattern": "("}),
        *({"additionalProperties": {}}, {"required": "name"}),
    ],
)
def test_a_schema_that_would_be_read_by_half_is_refused(schema: Any) -> None:
    assert list(schema_problems(schema))


def test_each_reward_says_what_it_is_and_checks_its_options() -> None:
    names = [kind.name for kind in REWARD_KINDS.built_in()]
    assert names == [
        "exact_match",
        "format",
        "json_schema",
        "length",
        "math_verify",
        "numeric_answer",
        "regex",
        "verifiers",
    ]
    for kind in REWARD_KINDS.built_in():
        assert kind.summary
        for name, setting in kind.options.items():
            assert isinstance(setting, SettingField)
            assert setting.description
            assert setting.refusals(object()), name
            assert name in kind.required or not setting.refusals(setting.default), name
