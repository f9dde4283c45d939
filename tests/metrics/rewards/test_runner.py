"""Rewards are computed elsewhere: what a function does wrong is a finding with its answer, and nothing waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.metrics.rewards import PlannedReward, RewardPlan, RewardRunner, Rewards

FUNCTIONS = """
import asyncio, os, time, sys

CALLS = []

def length(completions, **columns):
    CALLS.append(1)
    return [float(len(text)) for text in completions]

def only_short(completions, **columns):
    return [1.0 if len(text) < 3 else None for text in completions]

def columns_of(prompts, completions, target, **columns):
    assert "prompt" not in columns and "completion" not in columns
    return [float(text == want) for text, want in zip(completions, target)]

def no_columns(prompts, completions):
    return [float(len(prompts)) for _ in completions]

async def waits(completions, **columns):
    await asyncio.sleep(0)
    return [2.0 for _ in completions]

def of_messages(prompts, completions, **columns):
    return [float(one[0]["content"] == "b" and two[-1]["role"] == "user") for one, two in zip(completions, prompts)]

def raises(completions, **columns):
    if "bad" in completions:
        raise ValueError("cannot read it")
    return [1.0 for _ in completions]

def leaves(completions, **columns):
    if "bad" in completions:
        sys.exit("goodbye")
    return [1.0 for _ in completions]

def hangs(completions, **columns):
    while "bad" in completions:
        time.sleep(0.01)
    return [1.0 for _ in completions]

def crashes(completions, **columns):
    if "bad" in completions:
        os.kill(os.getpid(), 11)
    return [1.0 for _ in completions]

def hoards(completions, **columns):
    return [float(len(bytearray(400 * 1024**2))) if "bad" in completions else 1.0 for _ in completions]

LEAKED = []

def leaks(completions, **columns):
    LEAKED.append(bytearray(60 * 1024**2))
    return [1.0 for _ in completions]

def nan(completions, **columns):
    return [float("nan") if text == "bad" else 1.0 for text in completions]

def text(completions, **columns):
    return "good"

def words(completions, **columns):
    return ["1.0" if text == "bad" else 1.0 for text in completions]

def too_few(completions, **columns):
    return [1.0]

def whole_batch(completions, **columns):
    return [float(len(completions)) for _ in completions]

def environment(completions, **columns):
    return [float(text in os.environ) for text in completions]

def prints(completions, **columns):
    print("to the terminal")
    return [0.0 for _ in completions]

def calls(completions, **columns):
    CALLS.append(1)
    return [float(len(CALLS)) for _ in completions]

def state(completions, trainer_state):
    return [0.0 for _ in completions]

def logs(completions, log_extra=None, **columns):
    return [float(log_extra is None) for _ in completions]
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    path.write_text(FUNCTIONS)
    return path


def planned(module: Path, *names: str, **plan: Any) -> RewardPlan:
    own = tuple(PlannedReward(name=name, function=f"{module}:{name}") for name in names)
    # far longer than a call takes on a busy machine
    limits: dict[str, Any] = {"time_limit": 60.0, "memory_limit": 256 * 1024**2, "workers": 1}
    return RewardPlan(**{"functions": own, **limits, **plan})


@pytest.fixture(scope="module")
def shared(module: Path) -> Iterator[RewardRunner]:
    """Return a runner whose one process outlives what goes wrong in it."""
    with RewardRunner(planned(module)) as runner:
        yield runner


def rewarded(runner: RewardRunner, completions: list[str], *, prompts: list[Any] | None = None, **rows: Any) -> Rewards:
    count = len(completions)
    number = runner.submit(
        prompts=prompts or ["p"] * count,
        completions=completions,
        columns=rows.get("columns", [{"place": place} for place in range(count)]),
        sources=[f"train.jsonl:{place + 1}" for place in range(count)],
    )
    return runner.collect()[number]


def with_functions(shared: RewardRunner, plan: RewardPlan) -> RewardRunner:
    shared.plan = plan
    return shared


def test_weighted_values_are_added_and_none_is_left_out(shared: RewardRunner, module: Path) -> None:
    own = (
        PlannedReward(name="length", function=f"{module}:length", weight=0.5),
        PlannedReward(name="short", function=f"{module}:only_short", weight=2.0),
        PlannedReward(name="exact_match", function="exact_match", weight=0.0),
    )
    runner = with_functions(shared, planned(module, functions=own))
    found = rewarded(runner, ["ab", "abcd"], columns=[{"answer": "ab"}, {"answer": None}])
    assert found.total == (3.0, 2.0)
    assert found.by_function["length"] == (2.0, 4.0)
    assert found.by_function["short"][0] == 1.0
    assert math.isnan(found.by_function["short"][1])
    assert found.by_function["exact_match"][0] == 1.0
    assert not found.findings
    assert math.isnan(rewarded(with_functions(shared, planned(module, "only_short")), ["abcd"]).total[0])


def test_functions_are_given_what_trl_gives_them(shared: RewardRunner, module: Path) -> None:
    names = ("columns_of", "no_columns", "waits", "logs")
    columns = [{"target": "a", "prompt": "p", "completion": "x"}, {"target": "a", "other": 1}]
    found = rewarded(with_functions(shared, planned(module, *names)), ["a", "b"], columns=columns)
    assert not found.findings
    assert found.by_function == {
        "columns_of": (1.0, 0.0),
        "no_columns": (2.0, 2.0),
        "waits": (2.0, 2.0),
        "logs": (1.0, 1.0),
    }
    messages = [{"role": "user", "content": "a"}]
    found = rewarded(with_functions(shared, planned(module, "of_messages")), ["b", "c"], prompts=[messages] * 2)
    assert found.total == (1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("raises", "raised ValueError: cannot read it (my_rewards.py:"),
        ("leaves", "SystemExit: goodbye"),
        ("crashes", "ended its process by the signal SIGSEGV"),
        ("hoards", "reached its memory limit of 256 MiB"),
        ("nan", "returned nan, which is no finite number"),
        ("words", "returned '1.0', which is no finite number"),
    ],
)
def test_one_answer_that_cannot_be_rewarded_is_named_and_others_are(
    shared: RewardRunner, module: Path, name: str, what: str
) -> None:
    assert_second_is_named(with_functions(shared, planned(module, name)), name, what)


def test_an_answer_whose_call_hangs_is_named_and_others_are_rewarded(module: Path) -> None:
    # processes keep the limits that they began with
    with RewardRunner(planned(module, "hangs", time_limit=1.5)) as runner:
        assert_second_is_named(runner, "hangs", "took longer than 1.5s for one call and was stopped")


def assert_second_is_named(runner: RewardRunner, name: str, what: str) -> None:
    found = rewarded(runner, ["good", "bad", "fine"])
    assert found.total[0] == found.total[2] == 1.0
    assert math.isnan(found.total[1])
    (finding,) = found.findings
    assert str(finding).startswith(f"train.jsonl:2: the reward {name} ")
    assert what in str(finding)
    assert finding.answer == 1


@pytest.mark.parametrize(
    ("name", "what"),
    [("text", "returned 'good', not a list"), ("too_few", "returned 1 values for 2 completions")],
)
def test_a_function_that_returns_something_else_is_named(
    shared: RewardRunner, module: Path, name: str, what: str
) -> None:
    plan = planned(module, functions=(PlannedReward(name=name, function=f"{module}:{name}", cache=False),))
    found = rewarded(with_functions(shared, plan), ["a", "b"])
    assert all(map(math.isnan, found.total))
    assert what in str(found.findings[0])


def test_a_failure_is_no_none_the_sum_is_not_given(shared: RewardRunner, module: Path) -> None:
    found = rewarded(with_functions(shared, planned(module, "length", "raises")), ["bad", "ok"])
    assert math.isnan(found.total[0])
    assert found.by_function["length"] == (3.0, 2.0)
    assert found.total[1] == 3.0
    own = tuple(
        PlannedReward(name=name, function=f"{module}:{name}", weight=weight)
        for name, weight in (("length", 1.0), ("raises", 0.0))
    )
    # what is measured only cannot take a reward away
    found = rewarded(with_functions(shared, planned(module, functions=own)), ["bad", "ok"])
    assert found.total == (3.0, 2.0)
    assert len(found.findings) == 1


def test_a_process_that_leaks_is_replaced(shared: RewardRunner, module: Path) -> None:
    runner = with_functions(shared, planned(module, "leaks"))
    for place in range(6):
        found = rewarded(runner, ["a"], columns=[{"place": place}])
        assert found.total == (1.0,)
        assert not found.findings


def test_values_are_used_again_unless_the_task_says_no(shared: RewardRunner, module: Path) -> None:
    runner = with_functions(shared, planned(module, "calls"))
    first = rewarded(runner, ["a", "b"]).total
    assert rewarded(runner, ["a", "b"]).total == first
    own = (PlannedReward(name="whole_batch", function=f"{module}:whole_batch", cache=False),)
    runner = with_functions(shared, planned(module, functions=own))
    assert rewarded(runner, ["a", "b"]).total == (2.0, 2.0)
    assert rewarded(runner, ["a", "b", "c"]).total == (3.0, 3.0, 3.0)


def test_secrets_and_the_terminal_stay_here(
    module: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("JUDGE_URL", "given")
    with RewardRunner(planned(module, "environment", "prints", environment=("JUDGE_URL",))) as runner:
        found = rewarded(runner, ["HF_TOKEN", "JUDGE_URL", "PATH"])
    assert found.by_function["environment"] == (0.0, 1.0, 1.0)
    assert capfd.readouterr() == ("", "")


def test_batches_come_when_they_are_done_and_closing_ends_what_hangs(module: Path) -> None:
    with RewardRunner(planned(module, "hangs", time_limit=60.0, workers=2)) as runner:
        slow = runner.submit(prompts=["p"], completions=["bad"], columns=[{}], sources=["a:1"])
        fast = runner.submit(prompts=["p"], completions=["ok"], columns=[{}], sources=["a:2"])
        assert list(runner.collect()) == [fast]
        assert runner.collect(0) == {}
        process = next(own._process for own in runner._processes if own._process is not None)
        assert slow != fast
        began = time.monotonic()
    # far less than the time limit
    assert time.monotonic() - began < 30
    assert process.poll() is not None
    runner.close()
    with RewardRunner(planned(module, "hangs")) as runner:
        assert runner.collect() == {}


def test_functions_are_looked_for_before_training(module: Path) -> None:
    (module.parent / "broken.py").write_text("import nowhere\n")
    # would begin another training in each process of rewards
    (module.parent / "trains.py").write_text(
        "from cohort.metrics.rewards import *\n"
        "plan = RewardPlan(functions=(PlannedReward(name='f', function='format'),))\n"
        "assert not (found := RewardRunner(plan).problems()), found\n"
    )
    own = (
        PlannedReward(name="gone", function=f"{module}:gone"),
        PlannedReward(name="broken", function=f"{module.parent / 'broken.py'}:f"),
        PlannedReward(name="state", function=f"{module}:state"),
        PlannedReward(name="trains", function=f"{module.parent / 'trains.py'}:f"),
        PlannedReward(name="length", function=f"{module}:length"),
    )
    runner = RewardRunner(planned(module, functions=own))
    found = runner.problems()
    assert [refusal.at for refusal in found] == [("rewards", "functions", place) for place in range(4)]
    assert "no gone in my_rewards.py" in found[0].found
    assert "No module named 'nowhere'" in found[1].found
    assert "needs trainer_state" in found[2].found
    assert "a training that the import of a reward began" in found[3].found
    runner.close()
