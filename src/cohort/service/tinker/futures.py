"""Answers that clients fetch later: a call is answered with a number, and the number with what the call gave."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
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

    @property
    def is_error(self) -> bool:
        """Whether the call was not carried out."""
        return self.json is not None and "error" in self.json

    def as_json(self) -> dict[str, Any]:
        """Return the answer as :meth:`from_json` reads it."""
        return {"json": self.json} if self.message is None else {"message": base64.b64encode(self.message).decode()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Answer:
        if "message" in kept:
            return cls(message=base64.b64decode(kept["message"]))
        return cls(json=kept["json"])

    @classmethod
    def of_error(cls, error: BaseException) -> Answer:
        category = "user" if isinstance(error, CohortError) else "server"
        words = str(error) if isinstance(error, CohortError) else "internal error; the call was not carried out"
        return cls(json={"error": words, "category": category})


@dataclass(kw_only=True, eq=False)
class _Promise:
    fingerprint: bytes
    task: asyncio.Task[Answer]
    num_bytes: int = 0


class Promises:
    """Calls by number. The same call again is the same promise."""

    def __init__(self, *, most: int = 20_000, most_bytes: int = 256 << 20) -> None:
        """Keep the answers of at most ``most`` calls that have ended, with messages of ``most_bytes`` together."""
        self._most, self._most_bytes, self._num_bytes = most, most_bytes, 0
        self._found: OrderedDict[str, _Promise] = OrderedDict()

    def make(
        self,
        request_id: str,
        fingerprint: bytes,
        run: Callable[[], Awaitable[Answer]],
        *,
        before: Callable[[], None] | None = None,
    ) -> str:
        """Begin a call, unless this is a repeat of one, and return its number.

        Args:
            before: Called first for a call that is none; where it raises, the call is not begun.

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
        if before is not None:
            before()
        promise = _Promise(fingerprint=fingerprint, task=asyncio.ensure_future(_answered(run)))
        promise.task.add_done_callback(lambda _: self._ended(request_id, promise))
        self._found[request_id] = promise
        self._forget_old(but=request_id)
        return request_id

    def keep(self, request_id: str, fingerprint: bytes, answer: Answer) -> None:
        """Know a call that has been answered, as before a restart."""

        async def run() -> Answer:
            return answer

        if request_id not in self._found:
            self.make(request_id, fingerprint, run)

    async def wait(self, request_id: str, *, timeout_seconds: float) -> Answer | None:
        """Return a call's answer; None where it does not come in time.

        Raises:
            GoneError: there is no such call.
        """
        promise = self._found.get(request_id)
        if promise is None:
            raise GoneError(f"there is no call {request_id!r}, or its answer is no longer kept")
        done, _ = await asyncio.wait({promise.task}, timeout=timeout_seconds)
        if promise.task.cancelled():
            raise GoneError(f"call {request_id!r} was cancelled")
        return promise.task.result() if done else None

    async def ended(self, request_id: str) -> Answer | None:
        """Return a call's answer once it has one; None for a call that is not kept."""
        promise = self._found.get(request_id)
        if promise is None:
            return None
        await asyncio.wait({promise.task})
        return None if promise.task.cancelled() else promise.task.result()

    def fingerprint(self, request_id: str) -> bytes | None:
        """Return the fingerprint of a call; None for one that is not kept."""
        promise = self._found.get(request_id)
        return None if promise is None else promise.fingerprint

    def is_open(self, request_id: str) -> bool:
        """Whether a call has no answer yet."""
        promise = self._found.get(request_id)
        return promise is not None and not promise.task.done()

    def cancel(self, request_id: str) -> None:
        """End a call whose client no longer wants its answer."""
        promise = self._forget(request_id)
        if promise is not None:
            promise.task.cancel()

    def _ended(self, request_id: str, promise: _Promise) -> None:
        if self._found.get(request_id) is promise and not promise.task.cancelled():
            promise.num_bytes = len(promise.task.result().message or b"")
            self._num_bytes += promise.num_bytes
            self._forget_old(but=request_id)

    def _forget_old(self, *, but: str) -> None:
        """Forget the oldest answers that are too many or too large, except that of one call."""
        if self._fits():
            return
        for request_id in list(self._found):
            if request_id != but and self._found[request_id].task.done():
                self._forget(request_id)
                if self._fits():
                    return

    def _fits(self) -> bool:
        return len(self._found) <= self._most and self._num_bytes <= self._most_bytes

    def _forget(self, request_id: str) -> _Promise | None:
        promise = self._found.pop(request_id, None)
        self._num_bytes -= 0 if promise is None else promise.num_bytes
        return promise


async def _answered(run: Callable[[], Awaitable[Answer]]) -> Answer:
    try:
        return await run()
    except Exception as error:
        if not isinstance(error, CohortError):
            _log.exception("a call failed")
        return Answer.of_error(error)
