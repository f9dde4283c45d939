"""The program of a process that computes rewards: reads calls from a pipe, answers them, and knows nothing else.

It is started with an environment of a few harmless variables and with limits on memory. Messages are JSON: what other
people's code returns is never unpickled by the program that trains.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import json
import linecache
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, SupportsFloat

from cohort.core.process.process_guard import guard_this_group
from cohort.metrics.functions import FunctionRefusedError, find_function, raised_text
from cohort.metrics.rewards.kinds import REWARD_KINDS
from cohort.metrics.rewards.reward import RewardColumnError

__all__ = ["main"]

_WRITE_ONE = "Write def NAME(prompts, completions, **columns): return a number for each completion."
# what TRL passes and a function of row and answer alone is not given
_NOT_GIVEN = ("trainer_state", "log_extra", "log_metric", "environments")


def main(arguments: Sequence[str]) -> None:
    """Serve the connection whose file descriptor is the first argument, until it is closed."""
    descriptor, memory_limit = int(arguments[0]), int(arguments[1])
    connection = Connection(descriptor)
    # what a function prints must reach neither the pipe nor the terminal of the training program
    devnull = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1, 2):
        os.dup2(devnull, own)
    guard_this_group(connection)
    functions: dict[str, _Function] = {}
    _limit_memory(memory_limit)
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        connection.send_bytes(json.dumps(_answered(message, functions)).encode())


def _limit_memory(num_bytes: int) -> None:
    # not on every system
    with suppress(ImportError, ValueError, OSError):
        import resource

        # data and not addresses: libraries map far more than they use
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def _answered(message: Mapping[str, Any], functions: dict[str, _Function]) -> dict[str, Any]:
    """Return the answer to a message: ``identity`` and ``values``, or ``error`` with ``refused`` or ``memory``."""
    try:
        key = _key(message)
        if key not in functions:
            functions[key] = _Function(message["function"], message["options"], source=message["source"])
        found = functions[key]
        if "conversation" in message:
            return {"identity": found.identity, **found.replied(message["conversation"])}
        values = found.call(message) if "completions" in message else []
        return {"identity": found.identity, "values": values}
    except FunctionRefusedError as error:
        return {"error": str(error), "refused": error.hint}
    except MemoryError:
        return {"error": "reached the memory limit of its process", "memory": True}
    except _WrongResultError as error:
        return {"error": str(error), "place": error.place}
    except RewardColumnError as error:
        return {"error": f"found {error}"}
    # whatever other people's code raises, SystemExit included
    except BaseException as error:
        own = functions.get(_key(message))
        if isinstance(error, Exception) and own is not None:
            return {"error": raised_text(error, of=own.function)}
        return {"error": "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")[:500]}


def _key(message: Mapping[str, Any]) -> str:
    return json.dumps([message[name] for name in ("function", "options", "source")])


class _WrongResultError(Exception):
    def __init__(self, text: str, *, place: int | None = None) -> None:
        super().__init__(text)
        self.place = place


class _Function:
    """A reward, found by its name."""

    def __init__(self, spelled: str, options: str, *, source: str) -> None:
        kind = REWARD_KINDS.find(spelled)
        if kind is not None:
            if kind.module and importlib.util.find_spec(kind.module) is None:
                hint = f"Run `pip install {kind.package}` (or install cohort-lora[{kind.extra}])."
                raise FunctionRefusedError(f"{kind.name}, but the package {kind.package} is not installed", hint=hint)
            self.function: Callable[..., Any] = kind.make(kind.with_defaults(json.loads(options)))
            self.identity = f"{spelled} {options}"
            self.is_own = True
        else:
            if source:
                _define_script(source)
            found = find_function(spelled, arguments=None, write_one=_WRITE_ONE)
            self.function, self.identity, self.is_own = found.function, found.identity, False
        self.parameters = _parameters(self.function)
        if taken := [name for name in _NOT_GIVEN if name in _required(self.function)]:
            hint = "Remove it, or give it a default: a reward depends on prompts, completions and columns."
            raise FunctionRefusedError(f"{self.function.__name__}, which needs {taken[0]}", hint=hint)

    def call(self, message: Mapping[str, Any]) -> list[float | None]:
        given: dict[str, Any] = {
            **message["columns"],
            "prompts": message["prompts"],
            "completions": message["completions"],
            "completion_ids": message["completion_ids"],
        }
        if not self.is_own:
            # as TRL: columns but the two that prompts and completions stand for
            given = {key: value for key, value in given.items() if key not in ("prompt", "completion")}
        if self.parameters is not None:
            given = {key: value for key, value in given.items() if key in self.parameters}
        found = self.function(**given)
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        return _checked(found, count=len(message["completions"]))

    def replied(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the function replies to the last answer of a conversation: ``messages``, or a ``reward``."""
        given = {**said["columns"], **{name: said[name] for name in ("messages", "turn", "is_last", "seed", "number")}}
        if self.parameters is not None:
            given = {key: value for key, value in given.items() if key in self.parameters}
        found = self.function(**given)
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        return _checked_reply(found)


def _checked_reply(found: Any) -> dict[str, Any]:
    if found is None:
        return {"reward": None}
    if isinstance(found, str):
        return {"messages": [{"role": "user", "content": found}]}
    messages = [found] if isinstance(found, Mapping) else found
    if isinstance(messages, Sequence) and messages and all(isinstance(own, Mapping) for own in messages):
        if all(isinstance(own.get("role"), str) and isinstance(own.get("content"), str) for own in messages):
            return {"messages": [dict(own) for own in messages]}
        raise _WrongResultError(f"returned {found!r:.80}, whose messages are not all {{role: TEXT, content: TEXT}}")
    number = math.nan
    if isinstance(found, SupportsFloat):
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            number = float(found)
    if not math.isfinite(number):
        raise _WrongResultError(f"returned {found!r:.80}, which is no text, no messages, no finite number and not None")
    return {"reward": number}


def _define_script(source: str) -> None:
    """Define in ``__main__`` what the script defines there that trains, so that messages name its lines."""
    file = f"<the script, {hashlib.sha256(source.encode()).hexdigest()[:8]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(sys.modules["__main__"]))


def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names that a function takes; None where it takes any."""
    try:
        own = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
        return None
    return frozenset(parameter.name for parameter in own)


def _required(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names that a function cannot do without."""
    try:
        own = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(parameter.name for parameter in own if parameter.default is parameter.empty)


def _checked(found: Any, *, count: int) -> list[float | None]:
    """Return what a function returned as numbers."""
    if hasattr(found, "tolist"):
        # arrays and tensors
        found = found.tolist()
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Sequence):
        raise _WrongResultError(f"returned {found!r:.80}, not a list with a number or None for each completion")
    if len(found) != count:
        raise _WrongResultError(f"returned {len(found)} values for {count} completions")
    values: list[float | None] = []
    for place, value in enumerate(found):
        if value is None:
            values.append(None)
            continue
        number = math.nan
        if isinstance(value, SupportsFloat) and not isinstance(value, str):
            with suppress(TypeError, ValueError, RuntimeError, OverflowError):
                number = float(value)
        if not math.isfinite(number):
            raise _WrongResultError(f"returned {value!r:.80}, which is no finite number and not None", place=place)
        values.append(number)
    return values
