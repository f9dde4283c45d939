"""Who may see the pages and who may change runs with them: keys, cookies and the tokens that go with them."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Session", "Sessions"]

# a working day; a page that is left open over night asks for the key again
_SECONDS_VALID = 12 * 3600.0
_MOST = 4096


@dataclass(frozen=True, kw_only=True)
class Session:
    """One browser that gave a key, or needs none.

    Attributes:
        number: The value of its cookie.
        csrf: What its pages send in a header with every change; other sites' pages cannot read it.
        key: The key that it was begun with, where the server asks again whether that still opens it; in memory alone.
    """

    number: str
    csrf: str
    ends_at: float
    key: str = field(default="", repr=False)


class Sessions:
    """The sessions of one server, in its memory: a restart ends them."""

    def __init__(self, api_keys: Sequence[str], *, keeps_key: bool = False) -> None:
        self._keys = tuple(key.encode() for key in api_keys)
        self._sessions: dict[str, Session] = {}
        self._keeps_key = keeps_key
        self._lock = threading.Lock()

    @property
    def needs_key(self) -> bool:
        return bool(self._keys)

    async def refusal(self, key: str) -> str:
        """Return why ``key`` opens nothing; empty where it opens the pages.

        All keys of the server are compared, each in constant time.
        """
        # JSON may hold halves of characters
        given = key.strip().encode(errors="replace")
        matches = [hmac.compare_digest(given, own) for own in self._keys]
        return "" if any(matches) else "this is no key of this server"

    async def holds(self, session: Session) -> bool:
        """Return whether a session may go on: the keys of one server stay as they are."""
        del session
        return True

    def begin(self, key: str = "") -> Session:
        """Return a new session; ``key`` opened it."""
        now = time.monotonic()
        session = Session(
            number=secrets.token_urlsafe(32),
            csrf=secrets.token_urlsafe(32),
            ends_at=now + _SECONDS_VALID,
            key=key if self._keeps_key else "",
        )
        with self._lock:
            if len(self._sessions) >= _MOST:
                self._sessions = {number: one for number, one in self._sessions.items() if one.ends_at > now}
                while len(self._sessions) >= _MOST:
                    # the oldest: dictionaries keep the order in which they were filled
                    del self._sessions[next(iter(self._sessions))]
            self._sessions[session.number] = session
        return session

    def find(self, number: str) -> Session | None:
        """Return the session of a cookie; None for none, a wrong or an old one."""
        with self._lock:
            found = self._sessions.get(number)
            if found is not None and found.ends_at <= time.monotonic():
                del self._sessions[number]
                found = None
        return found

    def end(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.number, None)
