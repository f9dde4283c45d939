"""Environments of the unmodified ``verifiers`` package converse with trials, from an environment of its own.

``tasksets`` has one of a single turn and one with a tool, installed there as their users would. The package's own
programs run: the one that asks the model, and the server of the tool.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cohort
from cohort.engine.tune import tune
from cohort.metrics.rewards import ConversationRunner, PlannedReward, Reply, RewardPlan, Said
from cohort.runs.reader import RunReader
from tests.conftest import REPOSITORY
from tests.end_to_end.tiny_tasks import tiny_task

PYTHON = os.environ.get("COHORT_VERIFIERS_PYTHON", "")
MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"
# the first conversation fetches what verifiers' programs need
PATIENCE = 400.0
# HOME keeps what uv has fetched; the certificates of the machine are for a package index of its own
ENVIRONMENT = ("PATH", "HOME", "SSL_CERT_FILE")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="the environment of verifiers: run make test-clients"),
    # programs start in processes of their own, each of which loads verifiers
    pytest.mark.timeout(1200),
]


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv of that environment be found first."""
    monkeypatch.setenv("PATH", f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")


def rows_of(taskset: str) -> list[dict[str, Any]]:
    """Return the rows that the documented command prints."""
    package = Path(cohort.__file__).parents[1]
    done = subprocess.run(
        [PYTHON, "-m", "cohort.metrics.rewards.kinds.verifiers", taskset],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[ConversationRunner]:
    options = json.dumps({"taskset": request.param})
    own = PlannedReward(name="verifiers", function="verifiers", options=options, turns=4)
    plan = RewardPlan(functions=(own,), workers=1, python=PYTHON, environment=ENVIRONMENT, time_limit=PATIENCE)
    runner = ConversationRunner(plan)
    yield runner
    runner.close()


def replied(runner: ConversationRunner, messages: list[dict[str, Any]], *, task: int, **more: Any) -> Reply:
    turn = sum(message["role"] == "assistant" for message in messages)
    said = Said(
        conversation=more.get("conversation", 0),
        messages=messages,
        columns={"prompt": "", "task": task},
        turn=turn,
        is_last=False,
        seed=1,
    )
    number = runner.submit(said)
    return runner.collect([number])[number]


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("runner", ["order_sums"], indirect=True)
def test_an_environment_of_one_turn_rewards_the_answer(runner: ConversationRunner) -> None:
    rows = rows_of("order_sums")
    assert [row["prompt"][0]["content"] for row in rows] == ["Sum: 1 + 2 =", "Sum: 2 + 4 =", "Sum: 3 + 6 ="]
    right = replied(runner, [*rows[1]["prompt"], answer("6")], task=1)
    wrong = replied(runner, [*rows[1]["prompt"], answer("7")], task=1, conversation=1)
    assert (right.finding, right.messages, right.reward) == (None, (), 1.0)
    assert (wrong.finding, wrong.reward) == (None, 0.0)


@pytest.mark.parametrize("runner", ["stock_room"], indirect=True)
def test_an_environment_with_a_tool_calls_it_and_rewards_the_conversation(runner: ConversationRunner) -> None:
    rows = rows_of("stock_room")
    assert rows[1]["prompt"][0]["content"] == "How many lamps are in stock?"
    assert [tool["function"]["name"] for tool in rows[1]["tools"]] == ["count"]
    call = answer('<tool_call>{"name": "count", "arguments": {"item": "lamps"}}</tool_call>')
    asked = replied(runner, [*rows[1]["prompt"], call], task=1)
    assert asked.finding is None
    (told,) = asked.messages
    assert (told["role"], "17" in told["content"]) == ("tool", True)
    ended = replied(runner, [*rows[1]["prompt"], call, dict(told), answer("There are 17.")], task=1)
    assert (ended.finding, ended.reward) == (None, 1.5)
    # without the tool it is a guess, and scored as one
    guessed = replied(runner, [*rows[1]["prompt"], answer("17")], task=1, conversation=1)
    assert (guessed.finding, guessed.reward) == (None, 1.0)


def test_a_sweep_trains_on_its_conversations(tmp_path: Path) -> None:
    rows = rows_of("order_sums")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tiny_task(
        tmp_path,
        model_name_or_path=str(MODEL),
        dataset={"train": "train.jsonl", "validation": "train.jsonl", "chat_template": "plain"},
        objective={"type": "grpo", "num_generations": 2, "max_completion_length": 8},
        rewards={
            "functions": [{"function": "verifiers", "taskset": "order_sums", "turns": 2}],
            "workers": 1,
            "python": PYTHON,
            "environment": list(ENVIRONMENT),
            "time_limit": PATIENCE,
            "memory_limit": "4GiB",
        },
        lora={"lora_dropout": 0.0},
        training={"max_steps": 1},
        search={"space": {"learning_rate": [1e-3]}},
        early_exit={"rule": "none"},
    )
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        (trial,) = reader.trials()
        (step,) = reader.log.steps()
    assert trial.status.value == "completed"
    assert step.metrics.get("reward_errors", 0.0) == 0.0
    assert 0.0 <= step.metrics["reward"] <= 1.0
