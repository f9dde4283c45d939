"""A new service has one key, whenever its first start was killed; one that an administrator has set up gets none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.service.hosting.opening import first_key, open_service
from cohort.service.hosting.service_file import default_service
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


@pytest.mark.parametrize("folder", ["plain", "plain/below", "/proc/cohort"])
def test_a_folder_that_cannot_be_made_is_named(folder: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a file")
    file = default_service().model_copy(update={"folder": str(tmp_path / folder)})
    with pytest.raises(InputError, match=r"folder: found .* allowed: a folder that is there, or that can be made"):
        open_service(file, bases=())


def test_gpus_that_are_not_there_end_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    file = default_service().model_copy(update={"folder": str(tmp_path / "service")})
    asked = file.model_copy(update={"workers": file.workers.model_copy(update={"gpus": 3})})
    with pytest.raises(InputError, match=r"workers\.gpus: found 3, but torch can use 2 here; allowed: .* at most 2"):
        open_service(asked, bases=())
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match=r"found 3, but torch can use none here; .* write workers: \{cpu: 1\}"):
        open_service(asked, bases=())


@pytest.mark.parametrize("before", [(), (_organisation,), (_organisation, _project)])
def test_a_first_start_that_was_killed_is_gone_on_with(
    store: Store, before: tuple[Callable[[Store], None], ...]
) -> None:
    for step in before:
        step(store)
    text = first_key(store, owner="node")
    assert text is not None
    found = store.keys.find(text)
    assert found is not None
    (key,) = store.keys.list()
    assert key.scopes == frozenset(KeyScope)
    assert [organisation.name for organisation in store.tenants.organisations()] == ["default"]
    assert [project.name for project in store.tenants.projects()] == ["default"]
    assert first_key(store, owner="node") is None


def test_a_service_with_tenants_gets_none(store: Store) -> None:
    store.tenants.add_organisation("acme", actor="test")
    assert first_key(store, owner="node") is None
    assert store.keys.list() == []
