"""Organisations and projects, for administrators; each change is in the audit log."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update
from sqlalchemy.exc import IntegrityError

from cohort.core.errors import InputError, Problem
from cohort.store.database import Database
from cohort.store.enums import BlobState, JobStatus
from cohort.store.errors import NameTakenError, UnknownIdError
from cohort.store.random_names import RandomSource, new_id
from cohort.store.records import Organisation, Project, read_record
from cohort.store.tables import IS_OPEN, blobs, checkpoints, files, jobs, keys, models, organisations, projects
from cohort.store.tenants.audit import record_action

__all__ = ["DEFAULT_PROJECT", "Quotas", "Tenants", "check_name"]

DEFAULT_PROJECT = "default"
"""The project that an organisation's name alone stands for."""


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """What a project may have; None sets no bound. The fields are those of :class:`~cohort.store.records.Project`."""

    max_stored_bytes: int | None = None
    max_open_jobs: int | None = None
    max_tokens_per_day: int | None = None
    max_requests_per_minute: int | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(
                where=f"--{name.replace('_', '-')}",
                found=repr(value),
                allowed="a whole number from 0 on, or none for no bound",
                hint="Give another number.",
            )
            for name, value in asdict(self).items()
            if value is not None and value < 0
        ]
        if problems:
            raise InputError(problems)


class Tenants:
    """Who the service is for."""

    def __init__(self, database: Database, source: RandomSource) -> None:
        self._database = database
        self._source = source

    def add_organisation(self, name: str, *, actor: str) -> Organisation:
        """Add an organisation.

        Raises:
            NameTakenError: there is one of this name.
        """
        check_name(name)
        with self._database.write() as connection:
            made = Organisation(id=new_id(self._source, "org-"), name=name, created_at=self._database.now(connection))
            try:
                connection.execute(insert(organisations).values(**asdict(made)))
            except IntegrityError as error:
                raise NameTakenError(f"there is an organisation {name!r} already; choose another name") from error
            self._record(connection, actor, "organisation.add", made.id, details={"name": name})
        return made

    def add_project(
        self, organisation_id: str, name: str, *, actor: str, weight: float = 1.0, quotas: Quotas | None = None
    ) -> Project:
        """Add a project to an organisation.

        Raises:
            UnknownIdError: there is no such organisation.
            NameTakenError: it has a project of this name.
        """
        check_name(name)
        _check_weight(weight)
        self.organisation(organisation_id)
        with self._database.write() as connection:
            made = Project(
                id=new_id(self._source, "proj_"),
                organisation_id=organisation_id,
                name=name,
                weight=weight,
                created_at=self._database.now(connection),
                **asdict(quotas or Quotas()),
            )
            try:
                connection.execute(insert(projects).values(**asdict(made)))
            except IntegrityError as error:
                raise NameTakenError(f"the organisation has a project {name!r} already; choose another name") from error
            self._record(
                connection, actor, "project.add", made.id, project_id=made.id, details={"name": name, "weight": weight}
            )
        return made

    def organisation(self, id: str) -> Organisation:  # noqa: A002
        """Return an organisation by its id or its name."""
        statement = select(organisations).where(
            (organisations.c.id == id) | (organisations.c.name == id), organisations.c.removed_at.is_(None)
        )
        with self._database.read() as connection:
            row = connection.execute(statement).first()
        if row is None:
            raise UnknownIdError("organisation", id)
        return read_record(Organisation, row)

    def project(self, id: str) -> Project:  # noqa: A002
        """Return a project by its id, or by ``ORGANISATION/NAME``; without ``/NAME`` it is the ``default``."""
        with self._database.read() as connection:
            row = connection.execute(self._by_id_or_name(id)).first()
            if row is None and "/" not in id:
                row = connection.execute(self._by_id_or_name(f"{id}/{DEFAULT_PROJECT}")).first()
        if row is None:
            raise UnknownIdError("project", id)
        return read_record(Project, row)

    def organisations(self) -> list[Organisation]:
        statement = select(organisations).where(organisations.c.removed_at.is_(None)).order_by(organisations.c.name)
        with self._database.read() as connection:
            return [read_record(Organisation, row) for row in connection.execute(statement)]

    def projects(self, *, organisation_id: str | None = None) -> list[Project]:
        """Return the projects of one organisation or of all."""
        statement = (
            select(projects).where(projects.c.removed_at.is_(None)).order_by(projects.c.created_at, projects.c.id)
        )
        if organisation_id is not None:
            statement = statement.where(projects.c.organisation_id == organisation_id)
        with self._database.read() as connection:
            return [read_record(Project, row) for row in connection.execute(statement)]

    def set_weight(self, project_id: str, weight: float, *, actor: str) -> Project:
        """Set a project's share of the GPUs' time."""
        _check_weight(weight)
        return self._change(project_id, actor, "project.weight", weight=weight)

    def set_quotas(self, project_id: str, quotas: Quotas, *, actor: str) -> Project:
        """Set all quotas of a project. What it has already stays, also above them."""
        return self._change(project_id, actor, "project.quota", **asdict(quotas))

    def remove_project(self, project_id: str, *, actor: str) -> None:
        """Remove a project: its keys are revoked, its open jobs cancelled, its files and models deleted.

        Usage and the audit log stay. The bytes go with the next collection of blobs.
        """
        project = self.project(project_id)
        with self._database.write() as connection:
            self._remove(connection, project, actor)

    def remove_organisation(self, organisation_id: str, *, actor: str) -> None:
        """Remove an organisation with all its projects."""
        organisation = self.organisation(organisation_id)
        owned = self.projects(organisation_id=organisation.id)
        with self._database.write() as connection:
            for project in owned:
                self._remove(connection, project, actor)
            now = self._database.now(connection)
            connection.execute(
                update(organisations).where(organisations.c.id == organisation.id).values(removed_at=now)
            )
            self._record(connection, actor, "organisation.remove", organisation.id, details={"name": organisation.name})

    def _remove(self, connection: Connection, project: Project, actor: str) -> None:
        now = self._database.now(connection)
        own = project.id
        connection.execute(update(projects).where(projects.c.id == own).values(removed_at=now))
        connection.execute(
            update(keys).where(keys.c.project_id == own, keys.c.revoked_at.is_(None)).values(revoked_at=now)
        )
        connection.execute(
            update(jobs)
            .where(jobs.c.project_id == own, IS_OPEN)
            .values(
                status=JobStatus.CANCELLED,
                finished_at=now,
                changed_at=now,
                lease_token=jobs.c.lease_token + 1,
                lease_owner=None,
                lease_expires_at=None,
            )
        )
        for table in (files, checkpoints, models):
            connection.execute(
                update(table).where(table.c.project_id == own, table.c.deleted_at.is_(None)).values(deleted_at=now)
            )
        connection.execute(
            update(blobs).where(blobs.c.project_id == own).values(state=BlobState.REMOVED, changed_at=now)
        )
        self._record(connection, actor, "project.remove", own, project_id=own, details={"name": project.name})

    def _change(self, project_id: str, actor: str, action: str, **values: float | None) -> Project:
        before = self.project(project_id)
        with self._database.write() as connection:
            connection.execute(update(projects).where(projects.c.id == before.id).values(**values))
            details = {name: [getattr(before, name), value] for name, value in values.items()}
            self._record(connection, actor, action, before.id, project_id=before.id, details=details)
        return self.project(before.id)

    def _by_id_or_name(self, id: str) -> Select[Any]:  # noqa: A002
        named = projects.c.id == id
        organisation, slash, name = id.partition("/")
        statement = select(projects).where(projects.c.removed_at.is_(None))
        if not slash:
            return statement.where(named)
        joined = statement.join(organisations, organisations.c.id == projects.c.organisation_id)
        return joined.where(
            organisations.c.name == organisation, organisations.c.removed_at.is_(None), projects.c.name == name
        )

    def _record(
        self,
        connection: Connection,
        actor: str,
        action: str,
        target: str,
        *,
        project_id: str | None = None,
        details: dict[str, Any],
    ) -> None:
        record_action(
            connection,
            self._database,
            actor=actor,
            action=action,
            target=target,
            project_id=project_id,
            details=details,
        )


def check_name(name: str) -> None:
    """Raise :class:`InputError` if an organisation or a project cannot have this name."""
    if (
        not name
        or len(name) > 64
        or not all(letter.isalnum() or letter in "-_. " for letter in name)
        or name != name.strip()
    ):
        raise InputError(
            Problem(
                where="name",
                found=repr(name),
                allowed="1 to 64 letters, digits, '-', '_', '.' and spaces within",
                hint="Choose another name.",
            )
        )


def _check_weight(weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(
            Problem(
                where="weight",
                found=repr(weight),
                allowed="a number above 0; 1 is usual, 2 is twice the GPU time of 1",
                hint="Give another number.",
            )
        )
