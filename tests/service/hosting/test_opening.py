"""A new service has one key, whenever its first start was killed; one that an administrator has set up gets none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cohort.service.hosting.opening import first_key
from cohort.store.enums import KeyScope
from cohort.store.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "service")
    yield opened
    opened.close()


def _organisation(store: Store) -> None:
    store.tenants.add_organisation("default", actor="cohort service")


def _project(store: Store) -> None:
    (organisation,) = store.tenants.organisations()
    store.tenants.add_project(organisation.id, "default", actor="cohort service")


@pytest.mark.parametrize("before", [(), (_organisation,), (_organisation, _project)])
def test_a_first_start_that_was_killed_is_gone_on_with(
    store: Store, before: tuple[Callable[[Store], None], ...]
) -> None:
    for step in before:
        step(store)
    text = first_key(store)
    assert text is not None
    found = store.keys.find(text)
    assert found is not None
    (key,) = store.keys.list()
    assert key.scopes == frozenset(KeyScope)
    assert [organisation.name for organisation in store.tenants.organisations()] == ["default"]
    assert [project.name for project in store.tenants.projects()] == ["default"]
    assert first_key(store) is None


def test_a_service_with_tenants_gets_none(store: Store) -> None:
    store.tenants.add_organisation("acme", actor="test")
    assert first_key(store) is None
    assert store.keys.list() == []
