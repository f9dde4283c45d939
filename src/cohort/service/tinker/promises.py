"""Answers that clients fetch later: a call is answered with a number, and the number with what the call gave."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem

__all__ = ["Answer", "GoneError", "Promises"]

_log = logging.getLogger(__name__)


class GoneError(CohortError):
    """There is no such call, or its answer is no longer kept."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call gave: a JSON object, or the bytes of a message."""

    json: dict[str, Any] | None = None
    message: bytes | None = None

    @classmethod
    def of_error(cls, error: BaseException) -> Answer:
        category = "user" if isinstance(error, CohortError) else "server"
        words = str(error) if isinstance(error, CohortError) else "internal error; the call was not carried out"
        return cls(json={"error": words, "category": category})


@dataclass(kw_only=True, eq=False)
class _Promise:
    fingerprint: bytes
    task: asyncio.Task[Answer]


class Promises:
    """Calls by number. The same call again is the same promise."""

    def __init__(self, *, most: int = 20_000) -> None:
        """Keep the answers of at most ``most`` calls that have ended."""
        self._most = most
        self._found: OrderedDict[str, _Promise] = OrderedDict()

    def make(self, request_id: str, fingerprint: bytes, run: Callable[[], Awaitable[Answer]]) -> str:
        """Begin a call, unless this is a repeat of one, and return its number.

        Raises:
            InputError: its number was used with another body.
        """
        if (known := self._found.get(request_id)) is not None:
            if known.fingerprint != fingerprint:
                raise InputError(
                    Problem(
                        where="seq_id",
                        found=f"the number of {request_id}, which was used with another body",
                        allowed="a number of its own for each call",
                        hint="Number calls 1, 2, 3 and so on.",
                    )
                )
            return request_id
        self._found[request_id] = _Promise(fingerprint=fingerprint, task=asyncio.ensure_future(_answered(run)))
        self._forget_old()
        return request_id

    async def wait(self, request_id: str, *, timeout_seconds: float) -> Answer | None:
        """Return a call's answer; None where it does not come in time.

        Raises:
            GoneError: there is no such call.
        """
        promise = self._found.get(request_id)
        if promise is None:
            raise GoneError(f"there is no call {request_id!r}, or its answer is no longer kept")
        done, _ = await asyncio.wait({promise.task}, timeout=timeout_seconds)
        return promise.task.result() if done else None

    def cancel(self, request_id: str) -> None:
        """End a call whose client no longer wants its answer."""
        promise = self._found.pop(request_id, None)
        if promise is not None:
            promise.task.cancel()

    def _forget_old(self) -> None:
        for request_id in list(self._found)[: max(0, len(self._found) - self._most)]:
            if self._found[request_id].task.done():
                del self._found[request_id]


async def _answered(run: Callable[[], Awaitable[Answer]]) -> Answer:
    try:
        return await run()
    except Exception as error:
        if not isinstance(error, CohortError):
            _log.exception("a call failed")
        return Answer.of_error(error)
