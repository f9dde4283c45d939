"""Environments of the package verifiers (0.4 and later), which converse with the trials themselves.

An environment runs a program that asks a model and is then scored. Here the model is an endpoint of the reward's own
process, and its answers are those that a trial has drawn: a reply is what the program sends with its next request. A
process that was replaced begins the environment again and gives it the same answers.

    PYTHONPATH=... python -m cohort.metrics.rewards.kinds.verifiers TASKSET --count 100 > train.jsonl

writes the rows of a taskset: the first request of each of its tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import Refusal, SettingField
from cohort.metrics.rewards.model_endpoint import Asked, Ended, LiveConversation, ModelEndpoint
from cohort.metrics.rewards.reward import RewardFunction, RewardKind

__all__ = ["REWARD", "Environment", "EpisodeError"]

_KEY_VARIABLE = "COHORT_ENDPOINT_KEY"
_MOST_LIVE = 4096


class EpisodeError(Exception):
    """An environment failed, or does not converse as it did before."""


class Environment:
    """One environment of verifiers in this process, with the conversations that are on their way."""

    def __init__(self, taskset: str, *, arguments: Mapping[str, Any], harness: str, runtime: str) -> None:
        """Open a taskset; ``arguments`` are its settings, ``runtime`` is where its programs run."""
        os.environ.setdefault(_KEY_VARIABLE, "none")
        self._endpoint = ModelEndpoint()
        self._settings = (taskset, dict(arguments), harness, runtime)
        self._live: dict[int, tuple[LiveConversation, int]] = {}
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._problem = ""
        self._env: Any = None
        self._tasks: list[Any] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def reply(
        self, messages: Sequence[Mapping[str, Any]], *, number: int, turn: int, is_last: bool, task: int
    ) -> list[dict[str, Any]] | float | None:
        """Return the messages that come next, or the reward of a conversation that has ended.

        Raises:
            EpisodeError: it failed.
        """
        answers = [str(message["content"]) for message in messages if message["role"] == "assistant"][-turn:]
        live, answered = self._live.get(number) or self.begin(number, task=task)
        for place in range(answered, turn):
            self._asked(live)
            live.answers.put(answers[place])
        self._live[number] = live, turn
        event = live.events.get()
        while is_last and isinstance(event, Asked):
            # nothing more will be drawn: it is scored for what was said
            live.answers.put("")
            event = live.events.get()
        if isinstance(event, Asked):
            new = event.messages[live.heard + 1 :]
            live.heard = len(event.messages)
            # the next call finds it answered already
            self._live[number] = live, turn
            self._pending(live)
            return [dict(message) for message in new]
        self.end(number)
        if event.error:
            raise EpisodeError(event.error)
        return event.reward

    def first_request(self, task: int) -> Asked:
        """Return what a task asks first."""
        live, _ = self.begin(-1 - task, task=task)
        try:
            return self._asked(live)
        finally:
            self.end(-1 - task)

    def opened(self) -> list[Any]:
        """Wait until the taskset is there and return its tasks.

        Raises:
            EpisodeError: it cannot be opened.
        """
        self._ready.wait()
        if self._problem:
            raise EpisodeError(self._problem)
        return self._tasks

    def begin(self, number: int, *, task: int) -> tuple[LiveConversation, int]:
        """Begin a conversation; its number is the caller's."""
        tasks = self.opened()
        if not 0 <= task < len(tasks):
            raise EpisodeError(f"there is no task {task} in the taskset, which has {len(tasks)}")
        while len(self._live) >= _MOST_LIVE:
            # conversations of trials that have left
            self.end(next(iter(self._live)))
        model, live = self._endpoint.open(str(number))
        self._live[number] = live, 0
        asyncio.run_coroutine_threadsafe(self._run(live, model, tasks[task]), self._loop)
        return live, 0

    def end(self, number: int) -> None:
        """Forget a conversation."""
        self._live.pop(number, None)
        self._endpoint.forget(str(number))

    def close(self) -> None:
        """End all conversations, and the environment."""
        self._ready.wait()
        for number in [*self._live]:
            self.end(number)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._endpoint.close()

    @staticmethod
    def _pending(live: LiveConversation) -> None:
        """Leave a request that was seen to be answered by the next call."""
        live.events.put(Asked(messages=()))

    @staticmethod
    def _asked(live: LiveConversation) -> Asked:
        event = live.events.get()
        if isinstance(event, Ended):
            raise EpisodeError(event.error or "it ended before it asked for this answer")
        if event.messages:
            live.heard = len(event.messages)
        return event

    async def _run(self, live: LiveConversation, model: str, task: Any) -> None:
        try:
            import verifiers.v1 as vf

            client = vf.EvalClientConfig(base_url=self._endpoint.base_url, api_key_var=_KEY_VARIABLE)
            episode = await self._env.run_episode(task, vf.ModelContext(model=model, client=client))
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            if errors:
                live.events.put(Ended(error=f"failed: {errors[0].type}: {errors[0].message}"[:500]))
            else:
                live.events.put(Ended(reward=float(sum(trace.reward for trace in episode.traces))))
        except BaseException as error:
            live.events.put(Ended(error=f"failed: {error!r}"[:500]))
            if not isinstance(error, Exception):
                raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._open())
        except BaseException as error:
            self._problem = f"could not be opened: {error!r}"[:500]
        finally:
            self._ready.set()
            self._loop.close()

    async def _open(self) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import load_environment

        taskset, arguments, harness, runtime = self._settings
        agent = {"harness": {"id": harness}, "runtime": {"type": runtime}}
        config = vf.SingleAgentEnvConfig(taskset={"id": taskset, **arguments}, agent=agent)
        self._env = load_environment(config)
        self._tasks = list(self._env.taskset)
        async with self._env.serving():
            self._ready.set()
            await self._over.wait()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _make(options: Mapping[str, Any]) -> RewardFunction:
    opened: list[Environment] = []

    def verifiers(
        *, messages: Sequence[Mapping[str, Any]], number: int, turn: int, is_last: bool, task: int = 0
    ) -> Any:
        if not opened:
            names = ("taskset", "harness", "runtime")
            opened.append(Environment(**{name: options[name] for name in names}, arguments=options["arguments"] or {}))
        return opened[0].reply(messages, number=number, turn=turn, is_last=is_last, task=int(task))

    return verifiers


def _text_refusals(value: object) -> Iterator[Refusal]:
    if not isinstance(value, str) or not value:
        yield Refusal(found=repr(value), allowed="a name", hint="Write it as `vf-eval` takes it.")


def _arguments_refusals(value: object) -> Iterator[Refusal]:
    if value is not None and not isinstance(value, dict):
        yield Refusal(found=repr(value), allowed="a section of settings", hint="Write for example {split: train}.")


REWARD = RewardKind(
    name="verifiers",
    summary="an environment of the package verifiers, which replies to answers until it rewards the conversation",
    make=_make,
    options={
        "taskset": SettingField(
            kind=str,
            default=None,
            allowed="the id of an installed taskset",
            description="the environment's tasks; a row says which one it is of in its column `task`",
            check=_text_refusals,
        ),
        "arguments": SettingField(
            kind=dict,
            default=None,
            allowed="a section of settings",
            description="settings of the taskset",
            check=_arguments_refusals,
        ),
        "harness": SettingField(
            kind=str,
            default="null",
            allowed="the id of a harness",
            description="the program that converses",
            check=_text_refusals,
        ),
        "runtime": SettingField(
            kind=str,
            default="subprocess",
            allowed="the type of a runtime of verifiers",
            description="where that program runs",
            check=_text_refusals,
        ),
    },
    required=("taskset",),
    package="verifiers",
    module="verifiers",
    converses=True,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of a taskset."""
    parser = argparse.ArgumentParser(description="Write the rows of a taskset of verifiers as JSON lines.")
    parser.add_argument("taskset")
    parser.add_argument("--arguments", type=json.loads, default={}, help="settings of the taskset as a JSON object")
    parser.add_argument("--harness", default="null")
    parser.add_argument("--runtime", default="subprocess")
    parser.add_argument("--count", type=int, default=None, help="most rows")
    given = parser.parse_args(arguments)
    environment = Environment(given.taskset, arguments=given.arguments, harness=given.harness, runtime=given.runtime)
    try:
        for task in range(len(environment.opened()))[: given.count]:
            asked = environment.first_request(task)
            row = {"prompt": list(asked.messages), "task": task}
            print(json.dumps({**row, "tools": list(asked.tools)} if asked.tools else row), flush=True)
    finally:
        environment.close()


if __name__ == "__main__":
    main()
