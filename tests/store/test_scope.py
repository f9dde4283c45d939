"""Tenants see their own rows only: by how statements are built, and by the statements that reach the database."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from cohort.store.errors import UnknownIdError
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store
from cohort.store.tables import organisations

# what makes a statement without a project's id
UNSCOPED = {"select", "update", "delete", "insert", "text", "exec_driver_sql", "Table"}
NEW = NewJob(base_model="base", request={}, metadata={"team": "a"})


def _own_files(repository: Path) -> list[Path]:
    """The files of what a :class:`ProjectStore` offers."""
    return sorted((repository / "src" / "cohort" / "store").rglob("project_*.py"))


def test_what_tenants_reach_makes_statements_through_the_scope_only(repository: Path) -> None:
    files = _own_files(repository)
    assert len(files) == 4
    for path in files:
        tree = ast.parse(path.read_text())
        imported = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
            for name in node.names
        }
        assert not imported & UNSCOPED, path
        # in a statement, a method of anything but the scope
        called = {
            ast.unparse(node.func.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in UNSCOPED
        }
        assert called <= {"self._scope"}, path


@contextmanager
def _statements(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.database.engine, "before_cursor_execute", note)


def test_every_statement_of_a_tenant_names_its_project(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(NEW, events=[NewEvent(message="Created.")])
    event_id = own.jobs.events(job.id).items[0].id
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    with _statements(store) as seen:
        own.jobs.get(job.id)
        own.jobs.list(after=job.id, metadata={"team": "a"})
        own.jobs.list(without_metadata=True)
        own.jobs.events(job.id, after=event_id)
        own.jobs.events_since(job.id, 0)
        own.jobs.checkpoints(job.id)
        own.files.get(file.id)
        own.files.list(after=file.id)
        own.models.list()
        own.models.checkpoint("ft:x")
        own.usage.by_day()
        own.usage.stored_bytes()
    asking = [statement for statement in seen if "FROM" in statement and "clock_timestamp" not in statement]
    assert len(asking) > 12
    for statement in asking:
        assert "project_id = " in statement, statement


def test_a_foreign_id_costs_the_same_statements_as_one_that_never_was(
    store: Store, own: ProjectStore, other_project: Project
) -> None:
    job = own.jobs.create(NEW, events=[NewEvent(message="Created.")])
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    other = store.project(other_project.id)

    def asked(ask: Callable[[str], object], wanted: str) -> list[str]:
        with _statements(store) as seen, pytest.raises(UnknownIdError):
            ask(wanted)
        return seen

    for ask, foreign in (
        (other.jobs.get, job.id),
        (other.jobs.cancel, job.id),
        (other.jobs.events, job.id),
        (other.jobs.checkpoints, job.id),
        (other.files.get, file.id),
        (other.files.delete, file.id),
    ):
        assert asked(ask, foreign) == asked(ask, foreign[:-1] + "_"), ask


def test_an_errors_text_holds_nothing_that_a_client_sent(store: Store, own: ProjectStore) -> None:
    def insert_twice() -> None:
        with store.database.write() as connection:
            statement = organisations.insert().values(id=own.project_id, name="a secret", created_at=1.0)
            connection.execute(statement)
            connection.execute(statement)

    with pytest.raises(IntegrityError) as raised:
        insert_twice()
    # PostgreSQL's own text names the key that is there already, which is no secret
    assert "a secret" not in str(raised.value)
