"""Sessions of browsers: known to each process, kept as a digest, over with their time and with their key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from cohort.core.clock import ManualClock
from cohort.store.enums import KeyScope
from cohort.store.records import Project
from cohort.store.store import Store
from cohort.store.tables import page_sessions
from cohort.store.tenants.keys import NewKey


@pytest.fixture
def key(store: Store, project: Project) -> NewKey:
    return store.keys.create(project.id, actor="test", scopes=[KeyScope.TASKS], lifetime_seconds=1000)


def test_a_session_says_whose_it_is_until_its_time_is_over(store: Store, key: NewKey, clock: ManualClock) -> None:
    secret = store.page_sessions.begin(key.key.id, seconds=100)
    found = store.page_sessions.find(secret)
    assert found is not None
    assert (found.key.id, found.project.id) == (key.key.id, key.key.project_id)
    for wrong in ("", secret[:-1], key.text, "\0\ud800"):
        assert store.page_sessions.find(wrong) is None
    clock.advance(100)
    assert store.page_sessions.find(secret) is None
    # what is over goes with the next one that begins
    store.page_sessions.begin(key.key.id, seconds=100)
    with store.database.read() as connection:
        assert len(connection.execute(select(page_sessions)).all()) == 1


def test_only_the_digest_of_a_session_is_stored(store: Store, key: NewKey) -> None:
    secret = store.page_sessions.begin(key.key.id, seconds=100)
    with store.database.read() as connection:
        assert secret not in str(connection.execute(select(page_sessions)).all())
    assert len(bytes.fromhex(secret)) == 32


def _revoked(store: Store, key: NewKey, _: ManualClock) -> None:
    store.keys.revoke(key.key.id, actor="test")


def _expired(_: Store, __: NewKey, clock: ManualClock) -> None:
    clock.advance(1001)


def _removed(store: Store, key: NewKey, _: ManualClock) -> None:
    store.tenants.remove_project(key.key.project_id, actor="test")


@pytest.mark.parametrize("end", [_revoked, _expired, _removed])
def test_a_session_ends_with_its_key(
    store: Store, key: NewKey, clock: ManualClock, end: Callable[[Store, NewKey, ManualClock], None]
) -> None:
    secret = store.page_sessions.begin(key.key.id, seconds=5000)
    end(store, key, clock)
    assert store.page_sessions.find(secret) is None


def test_a_session_that_was_left_is_over_and_the_others_go_on(store: Store, key: NewKey) -> None:
    first, second = (store.page_sessions.begin(key.key.id, seconds=100) for _ in range(2))
    for _ in range(2):
        store.page_sessions.end(first)
        assert store.page_sessions.find(first) is None
        assert store.page_sessions.find(second) is not None


def test_the_oldest_of_very_many_sessions_of_a_key_end(store: Store, key: NewKey, clock: ManualClock) -> None:
    secrets = []
    for _ in range(103):
        secrets.append(store.page_sessions.begin(key.key.id, seconds=900))
        clock.advance(0.5)
    found = [store.page_sessions.find(secret) is not None for secret in secrets]
    assert found == [False] * 3 + [True] * 100
