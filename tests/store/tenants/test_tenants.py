"""Organisations and projects, and what is left of them."""

from __future__ import annotations

import math

import pytest

from cohort.core.errors import InputError
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import LeaseLostError, NameTakenError, UnknownIdError
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.audit import list_audit
from cohort.store.tenants.tenants import Quotas
from cohort.store.tenants.usage import export_usage


def test_names_are_unique_among_those_that_are_there(store: Store, project: Project) -> None:
    with pytest.raises(NameTakenError, match="organisation 'acme'"):
        store.tenants.add_organisation("acme", actor="test")
    with pytest.raises(NameTakenError, match="project 'default'"):
        store.tenants.add_project(project.organisation_id, "default", actor="test")
    other = store.tenants.add_organisation("other", actor="test")
    store.tenants.add_project(other.id, "default", actor="test")
    store.tenants.remove_organisation(project.organisation_id, actor="test")
    assert store.tenants.add_organisation("acme", actor="test").id != project.organisation_id


def test_projects_are_found_by_id_and_by_name(store: Store, project: Project) -> None:
    assert store.tenants.project(project.id) == project
    assert store.tenants.project("acme/default") == project
    assert store.tenants.project("acme") == project
    bare = store.tenants.add_organisation("bare", actor="test")
    store.tenants.add_project(bare.id, "other", actor="test")
    assert store.tenants.organisation("acme").id == project.organisation_id
    for unknown in ("acme/none", "none/default", "default", "proj_none", "bare", "acme/"):
        with pytest.raises(UnknownIdError):
            store.tenants.project(unknown)
    with pytest.raises(UnknownIdError):
        store.tenants.add_project("org-none", "x", actor="test")


@pytest.mark.parametrize("name", ["", " a", "a/b", "a\nb", "a" * 65, "a:b", "\0"])
def test_names_that_cannot_be_typed_are_refused(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="name"):
        store.tenants.add_organisation(name, actor="test")


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan])
def test_a_weight_is_above_zero(store: Store, project: Project, weight: float) -> None:
    with pytest.raises(InputError, match="weight"):
        store.tenants.set_weight(project.id, weight, actor="test")


def test_weight_and_quotas_are_set_and_audited(store: Store, project: Project) -> None:
    assert store.tenants.set_weight(project.id, 2.5, actor="alice").weight == 2.5
    changed = store.tenants.set_quotas(project.id, Quotas(max_open_jobs=3, max_stored_bytes=10), actor="bob")
    assert (changed.max_open_jobs, changed.max_stored_bytes, changed.max_tokens_per_day) == (3, 10, None)
    entries = list_audit(store.database).items[:2]
    assert [(entry.actor, entry.action) for entry in entries] == [("bob", "project.quota"), ("alice", "project.weight")]
    assert entries[1].details == {"weight": [1.0, 2.5]}
    with pytest.raises(InputError, match="--max-open-jobs"):
        Quotas(max_open_jobs=-1)


def test_a_removed_project_leaves_usage_and_audit_only(store: Store, project: Project, own: ProjectStore) -> None:
    own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    own.usage.add({UsageKind.TRAINED_TOKENS: 5})
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    found = store.claims.claim(job.id, "runner", seconds=60)
    assert found is not None
    store.tenants.remove_project(project.id, actor="test")
    with pytest.raises(LeaseLostError):
        store.claims.update(found[0], status=JobStatus.RUNNING)
    with pytest.raises(UnknownIdError):
        own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    with pytest.raises(UnknownIdError):
        own.jobs.create(NewJob(base_model="base", request={}))
    assert own.files.list().items == []
    assert store.collect_blobs() == 1
    assert list(store.blobs.folder.names()) == []
    assert store.tenants.projects() == []
    assert [row.amount for row in export_usage(store.database)] == [5]
    assert list_audit(store.database).items[0].action == "project.remove"


def test_every_change_of_an_administrator_is_in_the_audit_log(store: Store, project: Project) -> None:
    new = store.keys.create(project.id, actor="a")
    store.keys.revoke(new.key.id, actor="a")
    store.tenants.set_weight(project.id, 2, actor="a")
    store.tenants.set_quotas(project.id, Quotas(), actor="a")
    store.tenants.remove_organisation(project.organisation_id, actor="a")
    page = list_audit(store.database, limit=3)
    assert page.has_more
    rest = list_audit(store.database, after=page.items[-1].position)
    assert [entry.action for entry in (*page.items, *rest.items)] == [
        "organisation.remove",
        "project.remove",
        "project.quota",
        "project.weight",
        "key.revoke",
        "key.create",
        "project.add",
        "organisation.add",
    ]
