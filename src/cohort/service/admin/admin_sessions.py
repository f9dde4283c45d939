"""Who may see a service's pages: holders of a key with the scope ``admin``, for as long as it opens anything."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from cohort.service.access.gate import CallerCache
from cohort.service.dashboard.sessions import Session, Sessions
from cohort.store.enums import KeyScope
from cohort.store.tenants.keys import Caller

__all__ = ["AdminSessions"]


class AdminSessions(Sessions):
    """Sessions that end with their key: each request asks whether it is still valid.

    The text of a key stays in the process's memory as long as its session, as in the gate's cache; no file holds it.
    """

    def __init__(self, callers: CallerCache) -> None:
        super().__init__((), keeps_key=True)
        self._callers = callers

    @property
    def needs_key(self) -> bool:
        return True

    async def refusal(self, key: str) -> str:
        # a text of a page may hold what no header can
        caller = await self._callers.find(key.strip()) if key.isascii() and key.strip() else None
        if caller is None:
            return "this key is wrong, expired or revoked"
        if KeyScope.ADMIN not in caller.key.scopes:
            return "this key lacks the scope admin"
        return ""

    async def holds(self, session: Session) -> bool:
        return not await self.refusal(session.key)

    async def caller(self, key: str) -> Caller:
        """Return whose key it is, of a request that passed the guard.

        Raises:
            HTTPException: 401; the key was revoked in between.
        """
        found = await self._callers.find(key)
        if found is None:
            raise HTTPException(401, "this key is wrong, expired or revoked")
        return found
