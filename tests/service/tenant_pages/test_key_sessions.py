"""Sessions of keys: known to every server process, over with their key on all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from cohort.service.access.gate import CallerCache
from cohort.service.dashboard.sessions import Session
from cohort.service.tenant_pages.key_sessions import KeySession, KeySessions
from cohort.store.enums import KeyScope
from cohort.store.store import Store, open_store


def server_process(store: Store, *, seconds: float = 0.0) -> KeySessions:
    """Return the sessions as one of several processes on one database has them."""
    return KeySessions(store.page_sessions, callers=CallerCache(store.keys.find, seconds=seconds), seconds=seconds)


def project_key(store: Store, *scopes: KeyScope) -> Any:
    project = store.tenants.add_project(store.tenants.add_organisation("acme", actor="test").id, "a", actor="test")
    return store.keys.create(project.id, actor="test", scopes=scopes)


def test_a_session_of_one_process_is_known_to_the_others_and_ends_on_all(tmp_path: Path) -> None:
    stores = [open_store(tmp_path) for _ in range(2)]
    key = project_key(stores[0], KeyScope.TASKS)

    async def used() -> None:
        first, second = map(server_process, stores)
        session = await first.begin(key.text)
        found = await second.find(session.number)
        assert isinstance(found, KeySession)
        assert (found.csrf, found.caller.key.id) == (session.csrf, key.key.id)
        assert session.number not in session.csrf
        await second.end(found)
        assert await first.find(session.number) is None
        again = await first.begin(key.text)
        stores[1].keys.revoke(key.key.id, actor="test")
        for process in (first, second):
            assert await process.find(again.number) is None
            assert await process.refusal(key.text)
            assert await process.of_program(key.text) is None

    asyncio.run(used())
    for store in stores:
        store.close()


def test_the_process_that_ends_a_session_forgets_it_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    key = project_key(store, KeyScope.TASKS)

    async def used() -> None:
        sessions = server_process(store, seconds=60)
        session = await sessions.begin(key.text)
        assert await sessions.find(session.number) is not None
        await sessions.end(session)
        assert await sessions.find(session.number) is None

    asyncio.run(used())
    store.close()


@pytest.mark.parametrize("scope", [KeyScope.METRICS, KeyScope.INFERENCE, KeyScope.TINKER, KeyScope.FINE_TUNING])
def test_a_key_for_something_else_opens_no_page(tmp_path: Path, scope: KeyScope) -> None:
    store = open_store(tmp_path)
    key = project_key(store, scope)

    async def used() -> None:
        sessions = server_process(store)
        assert "lacks the scope tasks" in await sessions.refusal(key.text)
        assert await sessions.of_program(key.text) is None

    asyncio.run(used())
    store.close()


def test_a_key_that_was_revoked_meanwhile_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    async def begun() -> Session:
        return await server_process(store).begin("sk-gone")

    with pytest.raises(HTTPException) as refused:
        asyncio.run(begun())
    assert refused.value.status_code == 401
    store.close()
