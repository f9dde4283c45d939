"""Sessions of browsers that signed in with a key: known to every server process, over when their key is."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from cohort.store.database import Database
from cohort.store.random_names import RandomSource, key_digest
from cohort.store.tables import keys, page_sessions
from cohort.store.tenants.keys import Caller, find_caller

__all__ = ["PageSessions"]

_TOKEN_BYTES = 32
# browsers of all who share a key
_MOST_OF_KEY = 100


class PageSessions:
    """The sessions of all keys. Like a key, a session is kept as its SHA-256."""

    def __init__(self, database: Database, source: RandomSource) -> None:
        self._database = database
        self._source = source

    def begin(self, key_id: str, *, seconds: float) -> str:
        """Begin a session and return its secret; the oldest of a key with very many ends."""
        secret = self._source.token_bytes(_TOKEN_BYTES).hex()
        with self._database.write() as connection:
            now = self._database.now(connection)
            connection.execute(delete(page_sessions).where(page_sessions.c.ends_at <= now))
            _drop_oldest(connection, key_id)
            own = {"digest": key_digest(secret), "key_id": key_id, "begun_at": now, "ends_at": now + seconds}
            connection.execute(insert(page_sessions).values(**own))
        return secret

    def find(self, secret: str) -> Caller | None:
        """Return whose session it is; None if there is none, or if it or its key is over."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            known = select(page_sessions.c.key_id).where(
                page_sessions.c.digest == key_digest(secret), page_sessions.c.ends_at > now
            )
            key_id = connection.scalar(known)
            return None if key_id is None else find_caller(connection, keys.c.id == key_id, now=now)

    def end(self, secret: str) -> None:
        """End a session; one that is over stays over."""
        with self._database.write() as connection:
            connection.execute(delete(page_sessions).where(page_sessions.c.digest == key_digest(secret)))


def _drop_oldest(connection: Connection, key_id: str) -> None:
    own = select(page_sessions.c.digest).where(page_sessions.c.key_id == key_id)
    late = own.order_by(page_sessions.c.begun_at.desc(), page_sessions.c.digest).offset(_MOST_OF_KEY - 1)
    over = list(connection.scalars(late.limit(_MOST_OF_KEY)))
    connection.execute(delete(page_sessions).where(page_sessions.c.digest.in_(over)))
