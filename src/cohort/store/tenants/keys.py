"""Keys: made, shown once, found again by their SHA-256, revoked."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, select, update
from sqlalchemy import insert as insert_into
from sqlalchemy.sql.elements import ColumnElement

from cohort.core.errors import InputError, Problem
from cohort.store.database import Database
from cohort.store.enums import KeyScope
from cohort.store.errors import StorageFull, StoreUnavailable, UnknownIdError
from cohort.store.random_names import RandomSource, key_digest, new_id, new_key_text
from cohort.store.records import Key, Project, read_record
from cohort.store.storable import check_storable
from cohort.store.tables import keys, projects
from cohort.store.tenants.audit import record_action

__all__ = ["TENANT_SCOPES", "Caller", "Keys", "NewKey", "find_caller", "read_scopes"]

TENANT_SCOPES = frozenset(KeyScope) - {KeyScope.ADMIN, KeyScope.METRICS}
"""Default scopes of a key: everything of its project, nothing of all tenants."""
# tinker's client refuses keys that begin otherwise
_PREFIX, _TINKER_PREFIX = "sk-cohort-", "tml-cohort-"
_SHOWN_LETTERS = 6
# a write for each request would be the most frequent of all
_USE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key at its making: the only time that its text is there."""

    key: Key
    text: str

    def __repr__(self) -> str:
        # a log that prints it must not hold the secret
        return f"NewKey({self.key.prefix}...)"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sends a request: a key and its project."""

    key: Key
    project: Project


class Keys:
    """The keys of all projects."""

    def __init__(self, database: Database, source: RandomSource) -> None:
        self._database = database
        self._source = source

    def create(
        self,
        project_id: str,
        *,
        actor: str,
        name: str = "",
        scopes: Collection[KeyScope] = TENANT_SCOPES,
        lifetime_seconds: float | None = None,
    ) -> NewKey:
        """Make a key for a project.

        Raises:
            InputError: it would open nothing, or be expired at once.
            UnknownIdError: there is no such project.
        """
        _check(name, scopes, lifetime_seconds)
        # keys that tinker's client takes begin as it demands
        begin = _TINKER_PREFIX if KeyScope.TINKER in scopes else _PREFIX
        secret = new_key_text(self._source, prefix=begin)
        with self._database.write() as connection:
            if (
                connection.execute(
                    select(projects.c.id).where(projects.c.id == project_id, projects.c.removed_at.is_(None))
                ).first()
                is None
            ):
                raise UnknownIdError("project", project_id)
            now = self._database.now(connection)
            made = Key(
                id=new_id(self._source, "key_"),
                project_id=project_id,
                name=name,
                prefix=secret[: len(begin) + _SHOWN_LETTERS],
                scopes=frozenset(scopes),
                created_at=now,
                expires_at=None if lifetime_seconds is None else now + lifetime_seconds,
                last_used_at=None,
                revoked_at=None,
            )
            connection.execute(
                insert_into(keys).values(
                    id=made.id,
                    project_id=project_id,
                    name=name,
                    prefix=made.prefix,
                    digest=key_digest(secret),
                    scopes=sorted(scopes),
                    created_at=now,
                    expires_at=made.expires_at,
                )
            )
            details = {"name": name, "prefix": made.prefix, "scopes": sorted(scopes), "expires_at": made.expires_at}
            record_action(
                connection,
                self._database,
                actor=actor,
                action="key.create",
                target=made.id,
                project_id=project_id,
                details=details,
            )
        return NewKey(key=made, text=secret)

    def find(self, text: str) -> Caller | None:
        """Return whose key a text is; None if it is unknown, expired or revoked, or its project is removed.

        The database is asked for the text's SHA-256: how long that takes says nothing about other keys.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
            found = find_caller(connection, keys.c.digest == key_digest(text), now=now)
        if found is not None and (found.key.last_used_at is None or now - found.key.last_used_at >= _USE_SECONDS):
            # a database without room for this may well answer a request
            with suppress(StorageFull, StoreUnavailable), self._database.write() as connection:
                connection.execute(update(keys).where(keys.c.id == found.key.id).values(last_used_at=now))
        return found

    def list(self, project_id: str | None = None) -> list[Key]:
        """Return the keys of a project or of all, the oldest first, also those that open nothing any more."""
        statement = select(keys).order_by(keys.c.created_at, keys.c.id)
        if project_id is not None:
            statement = statement.where(keys.c.project_id == project_id)
        with self._database.read() as connection:
            return [read_record(Key, row) for row in connection.execute(statement)]

    def revoke(self, key_id: str, *, actor: str, project_id: str | None = None) -> None:
        """Make a key open nothing from now on; once more does nothing.

        Args:
            project_id: The key must be of this project; None allows any.

        Raises:
            UnknownIdError: there is no such key.
        """
        known = keys.c.id == key_id
        if project_id is not None:
            known = known & (keys.c.project_id == project_id)
        with self._database.write() as connection:
            row = connection.execute(select(keys).where(known)).first()
            if row is None:
                raise UnknownIdError("key", key_id)
            if row.revoked_at is not None:
                return
            now = self._database.now(connection)
            connection.execute(update(keys).where(keys.c.id == key_id).values(revoked_at=now))
            record_action(
                connection,
                self._database,
                actor=actor,
                action="key.revoke",
                target=key_id,
                project_id=row.project_id,
                details={"prefix": row.prefix},
            )


def find_caller(connection: Connection, known: ColumnElement[bool], *, now: float) -> Caller | None:
    """Return the key that meets a condition, with its project; None if it is expired or revoked, or there is none."""
    statement = (
        select(keys, *(column.label(f"owning_{column.name}") for column in projects.c))
        .join(projects, projects.c.id == keys.c.project_id)
        .where(known, keys.c.revoked_at.is_(None), projects.c.removed_at.is_(None))
    )
    row = connection.execute(statement).first()
    if row is None:
        return None
    key = read_record(Key, row)
    if key.expires_at is not None and key.expires_at <= now:
        return None
    values = {
        column.name: row._mapping[f"owning_{column.name}"] for column in projects.c if column.name != "removed_at"
    }
    return Caller(key=key, project=Project(**values))


def read_scopes(words: Collection[str]) -> frozenset[KeyScope]:
    """Return the scopes that words name.

    Raises:
        InputError: one of them names none.
    """
    unknown = sorted(set(words) - set(KeyScope))
    if unknown:
        allowed = ", ".join(KeyScope)
        raise InputError(
            [Problem(where="scopes", found=repr(word), allowed=allowed, hint="Choose among these.") for word in unknown]
        )
    return frozenset(map(KeyScope, words))


def _check(name: str, scopes: Collection[KeyScope], lifetime_seconds: float | None) -> None:
    check_storable({"name": name})
    if not scopes:
        allowed = ", ".join(KeyScope)
        raise InputError(Problem(where="scopes", found="none", allowed=allowed, hint="Give at least one."))
    if lifetime_seconds is not None and not lifetime_seconds > 0:
        raise InputError(
            Problem(where="expiry", found=str(lifetime_seconds), allowed="more than 0", hint="Give a longer time.")
        )
