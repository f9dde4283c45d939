"""What the process of an engine and the one that writes its streams tell each other. It needs no torch.

Messages are pickled, since both ends are of this program, and travel with their length in front. The connection of a
stream travels with its :class:`Attach`, as a file descriptor.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cohort.serving.step_output import StepOutput

__all__ = ["Attach", "Begin", "Forget", "Frames", "Outputs", "Report", "framed"]

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A stream whose tokens will come.

    Attributes:
        number: The stream's.
        first_key: What outputs of its first choice are called; those of the others follow.
        num_choices: How many there are.
        makes_texts: Whether its outputs come without texts.
        model, is_chat, with_logprobs, num_prompt_tokens, with_usage: What its events say.
        begun: When the request came, by ``time.perf_counter``.
    """

    number: int
    first_key: int
    num_choices: int
    makes_texts: bool
    model: str
    is_chat: bool
    with_logprobs: bool
    num_prompt_tokens: int
    with_usage: bool
    begun: float


@dataclass(frozen=True, kw_only=True)
class Attach:
    """The connection of a stream; the head of its answer has been written."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Forget:
    """A stream of which nothing is to be written any more."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What one pass gave all streams.

    Attributes:
        plain: Keys and tokens in turn, of choices that got a token and go on.
        others: Keys and outputs that say more.
    """

    plain: list[int]
    others: list[tuple[int, StepOutput]]


@dataclass(kw_only=True)
class Report:
    """What the writing process tells of its streams.

    Attributes:
        ended: Numbers of streams that are over, and whether all of their events were written.
        first: Seconds from requests to their first tokens.
        whole: Seconds from requests to their last tokens.
        counts, total_seconds: Of the seconds between tokens; see
            :class:`~cohort.service.request_times.IntervalCounts`.
    """

    ended: list[tuple[int, bool]] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    total_seconds: float = 0.0


def framed(message: object) -> bytes:
    """Return the bytes of a message."""
    content = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Cuts what is read of a connection into messages."""

    def __init__(self) -> None:
        self._left = bytearray()

    def read(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that are complete with ``data``."""
        self._left += data
        place = 0
        while len(self._left) >= place + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._left, place)
            end = place + _LENGTH.size + length
            if len(self._left) < end:
                break
            yield pickle.loads(memoryview(self._left)[place + _LENGTH.size : end])
            place = end
        del self._left[:place]
