"""Functions that answer a trial's answers: the next message, or the reward that ends the conversation.

    def reply(messages, **columns) -> str | dict | list[dict] | float | None

``messages`` are the prompt's and all that came after it. A text is the next message of the user, a number the reward.
A conversation stays with one process, which may keep what it likes of it; another one is given all messages as well.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.metrics.rewards.plan import RewardPlan
from cohort.metrics.rewards.worker_process import CallFailedError, WorkerProcess

__all__ = ["ConversationRunner", "Reply", "Said"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer that is to be replied to.

    Attributes:
        conversation: A number of the conversation: all its calls go to one process.
        messages: All of it, the answer last.
        columns: Of its row.
        turn: Answers so far, this one included.
        is_last: Whether no further answer will be drawn.
        seed: Of the conversation, for functions that draw.
    """

    conversation: int
    messages: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Any]
    turn: int
    is_last: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a function says.

    Attributes:
        messages: What the next answer is drawn to; none where the conversation ends.
        reward: NaN where it has none.
        finding: What went wrong, a clause about the function; None for nothing.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    reward: float = math.nan
    finding: str | None = None


class ConversationRunner:
    """Owns the processes that reply to the answers of a plan's conversations."""

    def __init__(self, plan: RewardPlan) -> None:
        """Start nothing yet: a process starts with its first call."""
        self.plan = plan
        (self._function,) = plan.functions
        self._next = 0
        self._came: dict[int, Reply] = {}
        self._calls: list[queue.SimpleQueue[tuple[int, Said] | None]] = []
        self._processes: list[WorkerProcess] = []
        self._threads: list[threading.Thread] = []
        self._done: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()

    @property
    def name(self) -> str:
        return self._function.name

    def submit(self, said: Said) -> int:
        """Begin to reply and return the number of the call at once."""
        self._start()
        number, self._next = self._next, self._next + 1
        self._calls[said.conversation % len(self._calls)].put((number, said))
        return number

    def collect(self, wanted: Collection[int], timeout: float | None = None) -> dict[int, Reply]:
        """Return those replies to ``wanted`` calls that have come, by number; the others stay for who wants them.

        Args:
            timeout: Most seconds to wait for the first of them; None waits for it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            while not self._done.empty():
                number, reply = self._done.get()
                self._came[number] = reply
            found = {number: self._came.pop(number) for number in wanted if number in self._came}
            left = None if until is None else until - time.monotonic()
            if found or not wanted or (left is not None and left <= 0):
                return found
            with contextlib.suppress(queue.Empty):
                number, reply = self._done.get(timeout=left)
                self._came[number] = reply

    def forget(self, number: int) -> None:
        """Want no reply to a call any more."""
        self._came.pop(number, None)

    def close(self) -> None:
        """End all processes, whatever they compute."""
        for process in self._processes:
            process.close()
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        if self._threads:
            return
        for number in range(self.plan.workers):
            process, calls = WorkerProcess(self.plan), queue.SimpleQueue[tuple[int, Said] | None]()
            self._processes.append(process)
            self._calls.append(calls)
            thread = threading.Thread(
                target=self._serve, args=(process, calls), name=f"conversations {number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, process: WorkerProcess, calls: queue.SimpleQueue[tuple[int, Said] | None]) -> None:
        while (call := calls.get()) is not None:
            number, said = call
            try:
                reply = self._replied(process, said)
            except CallFailedError as error:
                reply = Reply(finding=str(error))
            except Exception as error:  # a fault of ours must not leave the training program waiting
                reply = Reply(finding=f"could not be asked ({error!r:.200})")
            self._done.put((number, reply))

    def _replied(self, process: WorkerProcess, said: Said) -> Reply:
        found = process.reply(
            {
                **self._function.call(),
                "conversation": {
                    "messages": [dict(message) for message in said.messages],
                    "columns": dict(said.columns),
                    "turn": said.turn,
                    "is_last": said.is_last,
                    "seed": said.seed,
                    "number": said.conversation,
                },
            }
        )
        reward = found.get("reward")
        return Reply(
            messages=() if said.is_last else tuple(found.get("messages") or ()),
            reward=math.nan if reward is None else float(reward),
        )
