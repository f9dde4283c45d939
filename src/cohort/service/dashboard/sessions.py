"""Who may see the pages and who may change runs with them: keys, cookies and the tokens that go with them."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["SECONDS_VALID", "OwnSessions", "Session", "Sessions"]

SECONDS_VALID = 12 * 3600.0
"""A working day; a page that is left open over night asks for the key again."""
_MOST = 4096


@dataclass(frozen=True, kw_only=True)
class Session:
    """One browser that gave a key, or needs none; or a program that sends its key with each request.

    Attributes:
        number: The value of its cookie; of a program, nothing.
        csrf: What its pages send in a header with every change; other sites' pages cannot read it.
    """

    number: str
    csrf: str

    @property
    def is_program(self) -> bool:
        return not self.number


class Sessions(Protocol):
    """The sessions of a server."""

    @property
    def needs_key(self) -> bool:
        """Whether pages are shown to holders of a key only."""
        ...

    async def refusal(self, key: str) -> str:
        """Return why ``key`` opens nothing; empty where it opens the pages."""
        ...

    async def begin(self, key: str = "") -> Session:
        """Return a new session; ``key`` opened it.

        Raises:
            HTTPException: 401; the key has ended since.
        """
        ...

    async def find(self, number: str) -> Session | None:
        """Return the session of a cookie; None for none, a wrong or an old one, or one whose key has ended."""
        ...

    async def of_program(self, key: str) -> Session | None:
        """Return the session of a request that came with a key instead of a cookie; None if the key opens nothing."""
        ...

    async def end(self, session: Session) -> None:
        """End a session."""
        ...


class OwnSessions:
    """The sessions of one server with keys of its own, in its memory: a restart ends them."""

    def __init__(self, api_keys: Sequence[str]) -> None:
        self._keys = tuple(key.encode() for key in api_keys)
        self._sessions: dict[str, tuple[float, Session]] = {}
        self._lock = threading.Lock()

    @property
    def needs_key(self) -> bool:
        return bool(self._keys)

    async def refusal(self, key: str) -> str:
        """Say whether a key is the server's: all of its keys are compared, each in constant time."""
        # JSON may hold halves of characters
        given = key.strip().encode(errors="replace")
        matches = [hmac.compare_digest(given, own) for own in self._keys]
        return "" if any(matches) else "this is no key of this server"

    async def begin(self, key: str = "") -> Session:
        del key
        now = time.monotonic()
        session = Session(number=secrets.token_urlsafe(32), csrf=secrets.token_urlsafe(32))
        with self._lock:
            if len(self._sessions) >= _MOST:
                self._sessions = {number: one for number, one in self._sessions.items() if one[0] > now}
                while len(self._sessions) >= _MOST:
                    # the oldest: dictionaries keep the order in which they were filled
                    del self._sessions[next(iter(self._sessions))]
            self._sessions[session.number] = (now + SECONDS_VALID, session)
        return session

    async def find(self, number: str) -> Session | None:
        with self._lock:
            ends_at, found = self._sessions.get(number, (0.0, None))
            if found is not None and ends_at <= time.monotonic():
                del self._sessions[number]
                found = None
        return found

    async def of_program(self, key: str) -> Session | None:
        return None if await self.refusal(key) else Session(number="", csrf="")

    async def end(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.number, None)
