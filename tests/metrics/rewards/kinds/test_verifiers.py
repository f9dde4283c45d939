"""Environments of verifiers: by a stand-in that asks as its programs do; the package itself where it is installed."""

from __future__ import annotations

import asyncio
import json
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.metrics.rewards.kinds import REWARD_KINDS
from cohort.metrics.rewards.kinds.verifiers import Environment, EpisodeError, main

SCRIPT = {0: ["again", "and again"], 1: []}


class StandIn:
    """Asks for an answer, and again for each text of its task; the reward is how often it heard yes."""

    taskset = (0, 1)

    def serving(self) -> Any:
        class Serving:
            async def __aenter__(self) -> None: ...
            async def __aexit__(self, *_: object) -> None: ...

        return Serving()

    async def run_episode(self, task: int, context: Any) -> Any:
        messages = [{"role": "user", "content": f"task {task}"}]
        heard = 0
        for text in [*SCRIPT[task], None]:
            answer = await asyncio.to_thread(self._ask, context, messages)
            heard += answer == "yes"
            if answer == "break":
                error = SimpleNamespace(type="ToolError", message="no such tool")
                return SimpleNamespace(errors=[error], traces=[])
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": str(text)}]
        return SimpleNamespace(errors=[], traces=[SimpleNamespace(reward=float(heard), errors=[])])

    def _ask(self, context: Any, messages: list[dict[str, Any]]) -> str:
        body = json.dumps({"model": context.model, "messages": messages}).encode()
        request = urllib.request.Request(f"{context.client.base_url}/chat/completions", data=body)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return str(json.loads(response.read())["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            error.close()
            raise RuntimeError("given up") from None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, first = types.ModuleType("verifiers"), types.ModuleType("verifiers.v1")
    utils, loaders = types.ModuleType("verifiers.v1.utils"), types.ModuleType("verifiers.v1.utils.loaders")
    made: Any = SimpleNamespace
    vars(first).update(EvalClientConfig=made, ModelContext=made, SingleAgentEnvConfig=made)

    def load_environment(config: Any) -> StandIn:
        if config.taskset["id"] == "absent":
            raise ModuleNotFoundError("taskset 'absent' not found")
        return StandIn()

    vars(loaders)["load_environment"] = load_environment
    vars(package)["v1"] = first
    for module in (package, first, utils, loaders):
        monkeypatch.setitem(sys.modules, module.__name__, module)


Opening = Callable[..., Environment]


@pytest.fixture
def opened(stand_in: None) -> Iterator[Opening]:
    del stand_in
    made: list[Environment] = []

    def of(taskset: str = "game") -> Environment:
        made.append(Environment(taskset, arguments={}, harness="null", runtime="subprocess"))
        return made[-1]

    yield of
    for environment in made:
        environment.close()


def said(task: int, *answers: str) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": f"task {task}"}]
    for answer, reply in zip(answers, [*SCRIPT[task], None], strict=False):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": str(reply)}]
    return messages[:-1]


def test_what_a_program_asks_next_is_the_reply_and_its_score_the_reward(opened: Opening) -> None:
    environment = opened()
    given: dict[str, Any] = {"number": 5, "task": 0, "is_last": False}
    assert environment.reply(said(0, "yes"), turn=1, **given) == [{"role": "user", "content": "again"}]
    other = environment.reply(said(1, "no"), number=6, turn=1, task=1, is_last=False)
    assert other == 0.0
    assert environment.reply(said(0, "yes", "no"), turn=2, **given) == [{"role": "user", "content": "and again"}]
    assert environment.reply(said(0, "yes", "no", "yes"), turn=3, **given) == 2.0


def test_a_new_process_gives_the_same_answers_again_and_the_last_answer_ends_it(opened: Opening) -> None:
    messages = said(0, "yes", "yes")
    assert opened().reply(messages, number=5, turn=2, task=0, is_last=False) == [
        {"role": "user", "content": "and again"}
    ]
    assert opened().reply(messages, number=5, turn=2, task=0, is_last=True) == 2.0


def test_what_fails_is_said(opened: Opening) -> None:
    environment = opened()
    with pytest.raises(EpisodeError, match="ToolError: no such tool"):
        environment.reply(said(1, "break"), number=1, turn=1, task=1, is_last=False)
    with pytest.raises(EpisodeError, match="there is no task 2 in the taskset, which has 2"):
        environment.reply(said(1, "yes"), number=2, turn=1, task=2, is_last=False)
    with pytest.raises(EpisodeError, match="could not be opened: ModuleNotFoundError"):
        opened("absent").opened()


@pytest.mark.usefixtures("stand_in")
def test_rows_are_the_first_requests_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    main(["game"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"prompt": [{"role": "user", "content": f"task {task}"}], "task": task} for task in (0, 1)]


def test_it_is_a_reward_that_converses() -> None:
    kind = REWARD_KINDS.find("verifiers")
    assert kind is not None
    assert kind.converses
    assert kind.with_defaults({"taskset": "game"})["runtime"] == "subprocess"
