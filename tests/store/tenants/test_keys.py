"""Keys: shown once, kept as a digest, useless once revoked or expired."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from sqlalchemy import select

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.store.enums import KeyScope
from cohort.store.errors import UnknownIdError
from cohort.store.random_names import SeededSource
from cohort.store.records import Project
from cohort.store.store import Store, open_store
from cohort.store.tables import keys
from cohort.store.tenants.audit import list_audit


def test_only_the_digest_of_a_key_is_stored(tmp_path: Path) -> None:
    store = open_store(tmp_path / "service")
    organisation = store.tenants.add_organisation("acme", actor="test")
    project = store.tenants.add_project(organisation.id, "default", actor="test")
    new = store.keys.create(project.id, actor="test", name="laptop")
    with store.database.read() as connection:
        row = connection.execute(select(keys)).one()
    assert row.digest == hashlib.sha256(new.text.encode()).hexdigest()
    store.close()
    secret = new.text.rpartition("-")[2]
    files = [path for path in (tmp_path / "service").rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)
    # 32 random bytes, of which six letters are shown
    assert len(bytes.fromhex(secret)) == 32
    assert new.key.prefix == new.text[: len(new.text) - 64 + 6]
    assert secret not in repr(new)
    assert secret not in str(new)


def test_a_key_is_found_until_it_is_revoked(store: Store, project: Project) -> None:
    new = store.keys.create(project.id, actor="test", scopes=[KeyScope.INFERENCE])
    caller = store.keys.find(new.text)
    assert caller is not None
    assert (caller.project, caller.key.scopes) == (project, frozenset({KeyScope.INFERENCE}))
    assert store.keys.find(new.text[:-1]) is None
    assert store.keys.find("") is None
    assert store.keys.find("\0\ud800") is None
    store.keys.revoke(new.key.id, actor="test")
    store.keys.revoke(new.key.id, actor="test")
    assert store.keys.find(new.text) is None
    (listed,) = store.keys.list(project.id)
    assert listed.revoked_at is not None


def test_a_key_expires(store: Store, project: Project, clock: ManualClock) -> None:
    new = store.keys.create(project.id, actor="test", lifetime_seconds=10)
    clock.advance(9.5)
    assert store.keys.find(new.text) is not None
    clock.advance(0.5)
    assert store.keys.find(new.text) is None


def test_the_last_use_is_known_to_the_minute(store: Store, project: Project, clock: ManualClock) -> None:
    new = store.keys.create(project.id, actor="test")
    seen = []
    for _ in range(4):
        store.keys.find(new.text)
        seen.append(store.keys.list()[0].last_used_at)
        clock.advance(25)
    begin = clock.now().timestamp() - 100
    assert seen == [begin, begin, begin, begin + 75]


def test_a_key_of_a_removed_project_opens_nothing(store: Store, project: Project) -> None:
    new = store.keys.create(project.id, actor="test")
    store.tenants.remove_project(project.id, actor="test")
    assert store.keys.find(new.text) is None
    with pytest.raises(UnknownIdError):
        store.keys.create(project.id, actor="test")


def test_a_key_of_another_project_cannot_be_revoked(store: Store, project: Project, other_project: Project) -> None:
    new = store.keys.create(project.id, actor="test")
    with pytest.raises(UnknownIdError):
        store.keys.revoke(new.key.id, actor="test", project_id=other_project.id)
    assert store.keys.find(new.text) is not None


def test_a_key_that_opens_nothing_is_refused(store: Store, project: Project) -> None:
    with pytest.raises(InputError, match="scopes: found none; allowed: inference, fine_tuning"):
        store.keys.create(project.id, actor="test", scopes=[])
    with pytest.raises(InputError, match="expiry"):
        store.keys.create(project.id, actor="test", lifetime_seconds=0)


def test_tinkers_client_takes_keys_that_open_its_calls(store: Store, project: Project) -> None:
    assert store.keys.create(project.id, actor="test").text.startswith("tml-")
    assert store.keys.create(project.id, actor="test", scopes=[KeyScope.ADMIN]).text.startswith("sk-cohort-")


def test_making_and_revoking_is_in_the_audit_log_without_the_secret(store: Store, project: Project) -> None:
    new = store.keys.create(project.id, actor="alice", name="laptop")
    store.keys.revoke(new.key.id, actor="bob")
    entries = list_audit(store.database, project_id=project.id).items
    assert [(entry.actor, entry.action, entry.target) for entry in entries[:2]] == [
        ("bob", "key.revoke", new.key.id),
        ("alice", "key.create", new.key.id),
    ]
    assert new.text not in str(entries)


def test_no_two_keys_are_alike() -> None:
    source = SeededSource(1)
    assert len({source.token_bytes(32) for _ in range(1000)}) == 1000
