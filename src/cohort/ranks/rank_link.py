"""Another rank as rank 0 sees it, by whichever way its process was started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cohort.core.errors import RankLostError
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Call, Reply
from cohort.ranks.moved_state import on_host
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

__all__ = ["GO_ON", "RankLink", "Release", "Sent"]

GO_ON = "everything up to the last checkpoint is saved: go on with `cohort resume`, also with fewer GPUs"


@dataclass(frozen=True, kw_only=True)
class Release:
    """Drop what the rank serves with and wait for another setup; it has no answer."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A call on its way.

    Attributes:
        call: Without the rows among its arguments.
        rows: The number under which the rank keeps the rows of an argument, by the argument's name.
        new_rows: Those that it does not keep yet, by number.
    """

    call: Call
    rows: Mapping[str, int]
    new_rows: Mapping[int, TokenisedRows]


class RankLink(ABC):
    """A rank that rank 0 commands. Calls are answered in order; several ranks may work at the same time.

    Attributes:
        opens_gpu_memory: Whether it can open the memory of this process's GPU, and the other way round.
    """

    def __init__(self, rank: int, channel: Channel, *, opens_gpu_memory: bool = True) -> None:
        """Take a rank by its connection."""
        self.rank, self.opens_gpu_memory = rank, opens_gpu_memory
        self._channel = channel
        # by identity, as rows of a task are one object; kept, so that no other object takes the number
        self._rows: list[TokenisedRows] = []
        # whether the answers that are due are to be brought to the host
        self._brought: deque[bool] = deque()

    @property
    @abstractmethod
    def process_id(self) -> int: ...

    def fileno(self) -> int:
        """For those who wait for an answer, or for the end of the process."""
        return self._channel.fileno()

    def begin(self, setup: RankSetup) -> None:
        """Have the rank build what ``setup`` describes; an answer without a value says whether it could.

        Raises:
            RankLostError: the process has ended.
        """
        self._rows = list(setup.rows)
        self._brought.clear()
        self.send(setup)

    def ask(self, call: Call) -> None:
        """Send a call; its answer is due if it has one. Rows that the rank has seen before travel as their number.

        Raises:
            RankLostError: the process has ended.
        """
        # a copy is opened where it is and brought from there: through the connection it would take ten times as long
        is_brought = call.arguments.get("on_device") is False
        arguments = {**call.arguments, "on_device": True} if is_brought else dict(call.arguments)
        rows = {name: value for name, value in arguments.items() if isinstance(value, TokenisedRows)}
        before = len(self._rows)
        numbers = {name: self._number(value) for name, value in rows.items()}
        plain = replace(call, arguments={name: value for name, value in arguments.items() if name not in rows})
        if call.is_answered:
            self._brought.append(is_brought)
        self.send(Sent(call=plain, rows=numbers, new_rows=dict(enumerate(self._rows[before:], before))))

    def answer(self) -> Reply:
        """Wait for the answer to the oldest call without one.

        Raises:
            RankLostError: the process has ended.
        """
        try:
            reply: Reply = self._channel.receive()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        is_brought = bool(self._brought) and self._brought.popleft()
        return replace(reply, value=on_host(reply.value)) if is_brought else reply

    def send(self, message: object) -> None:
        """Send what is no call.

        Raises:
            RankLostError: the process has ended.
        """
        try:
            self._channel.send(message)
        except OSError as error:
            raise self._lost() from error

    @abstractmethod
    def close(self) -> None:
        """Let the rank end what it serves with."""

    @abstractmethod
    def kill(self) -> None:
        """Let go of the rank at once; its process ends, whatever it is doing or after the call it is at."""

    @abstractmethod
    def _lost(self) -> RankLostError:
        """Return the error that says which rank is gone, and what to do."""

    def _number(self, rows: TokenisedRows) -> int:
        for number, known in enumerate(self._rows):
            if known is rows:
                return number
        self._rows.append(rows)
        return len(self._rows) - 1
