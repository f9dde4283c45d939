"""Functions that reply to answers, in processes with limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cohort.metrics.rewards import ConversationRunner, PlannedReward, Reply, RewardPlan, Said

FUNCTIONS = """
import os, time

COUNTS = {}

def guess(messages, answer, turn, number, is_last, **columns):
    COUNTS[number] = COUNTS.get(number, 0) + 1
    said = messages[-1]["content"]
    if said == answer:
        return 1.0 / turn
    return f"no, {len(messages)} messages, call {COUNTS[number]} of {os.getpid()}"

def tool(messages):
    return [{"role": "tool", "content": "4"}, {"role": "user", "content": "and now?"}]

async def late(messages):
    return 0.5

def nothing(messages):
    return None

def raises(messages):
    return {}["x"]

def hangs(messages):
    time.sleep(60)

def wrong(messages):
    return [1.0, 2.0]

def half(messages):
    return {"role": "user"}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "talk.py"
    path.write_text(FUNCTIONS)
    return path


def runner_of(module: Path, name: str, **limits: Any) -> ConversationRunner:
    own = PlannedReward(name=name, function=f"{module}:{name}", turns=4)
    return ConversationRunner(RewardPlan(functions=(own,), workers=limits.pop("workers", 1), **limits))


def said(text: str, *, conversation: int = 0, turn: int = 1, is_last: bool = False) -> Said:
    messages = [{"role": "user", "content": "guess"}, {"role": "assistant", "content": text}]
    return Said(
        conversation=conversation,
        messages=messages,
        columns={"answer": "7", "prompt": "guess"},
        turn=turn,
        is_last=is_last,
        seed=1,
    )


def asked(runner: ConversationRunner, *calls: Said) -> list[Reply]:
    numbers = [runner.submit(call) for call in calls]
    found: dict[int, Reply] = {}
    while len(found) < len(numbers):
        found |= runner.collect(set(numbers) - found.keys())
    return [found[number] for number in numbers]


def test_a_conversation_stays_with_its_process_until_a_number_ends_it(module: Path) -> None:
    runner = runner_of(module, "guess", workers=2)
    try:
        first = asked(runner, *(said("3", conversation=number) for number in (0, 1)))
        again = asked(runner, *(said("4", conversation=number, turn=2) for number in (0, 1)))
        (end,) = asked(runner, said("7", turn=2))
        (last,) = asked(runner, said("8", turn=4, is_last=True))
    finally:
        runner.close()
    texts = [[reply.messages[0]["content"] for reply in replies] for replies in (first, again)]
    assert all("call 1 of" in text for text in texts[0])
    assert all("call 2 of" in text for text in texts[1])
    assert texts[0][0].split()[-1] != texts[0][1].split()[-1]
    assert (end.reward, end.messages, end.finding) == (0.5, (), None)
    # it asks for another answer where there is none
    assert last.messages == ()
    assert math.isnan(last.reward)


def test_a_reply_waits_for_who_wants_it(module: Path) -> None:
    runner = runner_of(module, "late")
    try:
        first, second = runner.submit(said("3")), runner.submit(said("4"))
        assert runner.collect([second])[second].reward == 0.5
        assert runner.collect([], timeout=0.0) == {}
        assert set(runner.collect([first], timeout=0.0)) == {first}
        assert runner.collect([first], timeout=0.01) == {}
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("name", "reward", "roles"), [("tool", None, ["tool", "user"]), ("late", 0.5, []), ("nothing", None, [])]
)
def test_a_reply_is_messages_a_number_or_nothing(
    module: Path, name: str, reward: float | None, roles: list[str]
) -> None:
    runner = runner_of(module, name)
    try:
        (reply,) = asked(runner, said("3"))
    finally:
        runner.close()
    assert [message["role"] for message in reply.messages] == roles
    assert math.isnan(reply.reward) if reward is None else reply.reward == reward
    assert reply.finding is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "raised KeyError"),
        ("hangs", "took longer than 0.5s for one reply"),
        ("wrong", "which is no text"),
        ("half", "whose messages are not all"),
    ],
)
def test_what_goes_wrong_is_said(module: Path, name: str, words: str) -> None:
    # a short one only where it is to pass: a busy machine takes its time for the others
    runner = runner_of(module, name, time_limit=0.5 if name == "hangs" else 60.0)
    try:
        (reply,) = asked(runner, said("3"))
    finally:
        runner.close()
    assert reply.finding is not None
    assert words in reply.finding
