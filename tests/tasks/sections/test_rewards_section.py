"""Rewards of a task: one name, a list or a section; options of each; every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.metrics.rewards.plan import PlannedReward
from cohort.tasks.loading import load_task, task_from_mapping, task_json_schema
from tests.tasks.task_files import BASE, problems_of, write

GRPO = BASE + "objective: grpo\n"


@pytest.mark.parametrize(
    "text", ["exact_match", "[exact_match]", "{function: exact_match}", "{functions: exact_match}"]
)
def test_one_reward_can_be_written_in_four_ways(folder: Path, text: str) -> None:
    task = load_task(write(folder, GRPO + f"rewards: {text}\n"))
    assert task.rewards is not None
    assert task.rewards.functions == (PlannedReward(name="exact_match", function="exact_match"),)
    again = folder / "again.yaml"
    again.write_text(task.resolved_yaml())
    assert load_task(again).model_dump() == task.model_dump()


def test_a_plan_has_functions_with_their_files_and_limits(folder: Path) -> None:
    (folder / "my_rewards.py").write_text("def short(completions, **_): return [0.0 for _ in completions]\n")
    text = GRPO + (
        "rewards:\n"
        "  functions:\n"
        "    - my_rewards:short\n"
        "    - {function: regex, pattern: '^a', weight: 0.5, name: starts}\n"
        "  time_limit: 5\n"
        "  memory_limit: 1GiB\n"
        "  environment: [JUDGE_URL]\n"
    )
    task = load_task(write(folder, text), ["--rewards.workers", "3"])
    assert task.rewards is not None
    plan = task.rewards.plan()
    assert plan.names == ("short", "starts")
    assert plan.functions[0].function == f"{(folder / 'my_rewards.py').resolve()}:short"
    assert plan.functions[1].option_values() == {"pattern": "^a"}
    assert (plan.time_limit, plan.memory_limit, plan.workers) == (5.0, 1024**3, 3)
    assert plan.environment == ("JUDGE_URL",)
    hash(plan)


def test_functions_can_be_given_from_python(folder: Path) -> None:
    task = load_task(write(folder, GRPO + "rewards: exact_match\n"))
    data = {**task.model_dump(mode="json"), "rewards": [{"function": "collections:Counter", "name": "counted"}]}
    assert task_from_mapping(data, base_directory=folder).rewards.functions[0].name == "counted"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rewards", "key", "found", "hint"),
    [
        ("[exact_mach]", "rewards.functions[0].function", "'exact_mach'", "Did you mean exact_match?"),
        ("[{weight: 1}]", "rewards.functions[0].function", "a reward without function", "function: my_rewards:correct"),
        ("[{function: regex}]", "rewards.functions[0]", "regex without pattern", "pattern: ..."),
        ("[{function: regex, pattern: '('}]", "rewards.functions[0].pattern", "cannot be read", "backslash"),
        ("[{function: length}]", "rewards.functions[0]", "length without least and most", "most: 200"),
        ("[{function: length, most: 3, unit: token}]", "functions[0].unit", "'token'", "tokens"),
        ("[{function: 'm:f', pattern: x}]", "functions[0].pattern", "unknown key 'pattern'", "its module may hold"),
        ("[{function: json_schema, schema: {typ: x}}]", "functions[0].schema.typ", "the keyword 'typ'", "Correct"),
        ("[exact_match, exact_match]", "rewards.functions[1]", "exact_match twice", "name: ..."),
        ("[{function: format, tags: [a, a]}]", "functions[0].tags", "['a', 'a']", "Remove the second"),
        ("[{function: exact_match, weight: high}]", "functions[0].weight", "'high'", "weight: 0.5"),
        ("{functions: [exact_match], memory_limit: 1MB}", "rewards.memory_limit", "'1MB'", "2GiB"),
        ("{functions: [exact_match], time_limit: 0}", "rewards.time_limit", "0", "time_limit: 30.0"),
        ("{functions: [exact_match], environment: ['A=1']}", "rewards.environment[0]", "'A=1'", "name alone"),
        ("[{function: exact_match, weight: 0}]", "rewards", "weight 0 alone", "weight such as 1"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, rewards: str, key: str, found: str, hint: str) -> None:
    (problem,) = problems_of(folder, GRPO + f"rewards: {rewards}\n")
    assert str(problem.where).endswith(key)
    assert found in problem.found
    assert hint in problem.hint


def test_the_schema_knows_rewards() -> None:
    described = task_json_schema()["properties"]["rewards"]["anyOf"]
    assert any("exact_match" in str(entry) for entry in described)
