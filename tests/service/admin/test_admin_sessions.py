"""A key that is revoked between the guard and the change is answered as one that is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from cohort.service.admin.admin_sessions import AdminSessions


class NoCallers:
    """Knows no key any more."""

    async def find(self, key: str) -> None:
        del key


def test_a_key_that_was_revoked_meanwhile_is_refused() -> None:
    callers: Any = NoCallers()
    with pytest.raises(HTTPException) as refused:
        asyncio.run(AdminSessions(callers).caller("sk-gone"))
    assert refused.value.status_code == 401
