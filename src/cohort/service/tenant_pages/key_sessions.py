"""Who may see a service's pages: holders of a key of a project, for as long as the key opens anything."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from cohort.service.access.gate import CallerCache
from cohort.service.dashboard.page_guard import session_of
from cohort.service.dashboard.sessions import SECONDS_VALID, Session
from cohort.store.enums import KeyScope
from cohort.store.tenants.keys import Caller
from cohort.store.tenants.page_sessions import PageSessions

__all__ = ["PAGE_SCOPES", "KeySession", "KeySessions", "caller_of_page", "is_admin"]

PAGE_SCOPES = frozenset({KeyScope.TASKS, KeyScope.ADMIN})
"""One of them opens the pages: the runs of the key's project, or those of all projects with their tenants."""


@dataclass(frozen=True, kw_only=True)
class KeySession(Session):
    """A session, and whose key it was begun with."""

    caller: Caller


class KeySessions:
    """Sessions in the database of a service, which all its server processes share, and which end with their key."""

    def __init__(self, kept: PageSessions, *, callers: CallerCache, seconds: float) -> None:
        """Take what knows sessions and keys.

        Args:
            callers: Says whose key a text is.
            seconds: So long another server process may take a session for open that has ended.
        """
        self._kept, self._callers = kept, callers
        self._known = CallerCache(kept.find, seconds=seconds)

    @property
    def needs_key(self) -> bool:
        return True

    async def refusal(self, key: str) -> str:
        caller = await self._caller(key)
        if caller is None:
            return "this key is wrong, expired or revoked"
        if not caller.key.scopes & PAGE_SCOPES:
            return "this key lacks the scope tasks, which opens the runs of its project"
        return ""

    async def begin(self, key: str = "") -> Session:
        caller = await self._caller(key)
        if caller is None:
            raise HTTPException(401, "this key is wrong, expired or revoked")
        secret = await asyncio.to_thread(self._kept.begin, caller.key.id, seconds=SECONDS_VALID)
        return _session(secret, caller)

    async def find(self, number: str) -> Session | None:
        caller = await self._known.find(number)
        return None if caller is None else _session(number, caller)

    async def of_program(self, key: str) -> Session | None:
        caller = await self._caller(key)
        if caller is None or not caller.key.scopes & PAGE_SCOPES:
            return None
        return KeySession(number="", csrf="", caller=caller)

    async def end(self, session: Session) -> None:
        if not session.is_program:
            await asyncio.to_thread(self._kept.end, session.number)
            self._known.forget(session.number)

    async def _caller(self, key: str) -> Caller | None:
        # a text of a page may hold what no header can
        text = key.strip()
        return await self._callers.find(text) if text and text.isascii() else None


def caller_of_page(request: Request) -> Caller:
    """Return whose key or session sent a request that passed the guard of the pages."""
    session = session_of(request.scope)
    assert isinstance(session, KeySession), "the guard lets no request to a route without one"
    return session.caller


def is_admin(caller: Caller) -> bool:
    return KeyScope.ADMIN in caller.key.scopes


def _session(secret: str, caller: Caller) -> KeySession:
    # the cookie is out of reach of scripts, and does not follow from this
    csrf = hashlib.sha256(f"page token of {secret}".encode()).hexdigest()
    return KeySession(number=secret, csrf=csrf, caller=caller)
