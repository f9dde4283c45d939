"""Who may see the pages and who may change runs with them: keys, cookies and the tokens that go with them."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    number: str
    csrf: str
    ends_at: float


class Sessions:
    """The sessions of one server, in its memory: a restart ends them."""

    def __init__(self, api_keys: Sequence[str]) -> None:
        self._keys = tuple(key.encode() for key in api_keys)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    @property
    def needs_key(self) -> bool:
        return bool(self._keys)

    def opens(self, key: str) -> bool:
        """Return whether ``key`` is one of the server's; all are compared, each in constant time."""
        # JSON may hold halves of characters
        given = key.strip().encode(errors="replace")
        matches = [hmac.compare_digest(given, own) for own in self._keys]
        return any(matches)

    def begin(self) -> Session:
        """Return a new session."""
        now = time.monotonic()
        session = Session(
            number=secrets.token_urlsafe(32),
            csrf=secrets.token_urlsafe(32),
            ends_at=now + _SECONDS_VALID,
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
