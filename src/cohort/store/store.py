"""A store: the database and the blobs of a service, and the doors to them."""

from __future__ import annotations

from pathlib import Path

from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.store.blobs.blob_folder import BlobFolder, open_blobs
from cohort.store.blobs.kept_blobs import KeptBlobs, collect_blobs
from cohort.store.changes import Changes, watch_changes
from cohort.store.database import Database, open_database
from cohort.store.housekeeping import Housekeeping, keep_house
from cohort.store.jobs.claims import Claims
from cohort.store.jobs.project_jobs import ProjectJobs
from cohort.store.migrating import migrate
from cohort.store.project_files import ProjectFiles
from cohort.store.project_models import ProjectModels
from cohort.store.project_usage import ProjectUsage
from cohort.store.random_names import RandomSource, SystemSource
from cohort.store.retention import Retention
from cohort.store.scope import Scope
from cohort.store.tenants.keys import Keys
from cohort.store.tenants.page_sessions import PageSessions
from cohort.store.tenants.tenants import Tenants

__all__ = ["ProjectStore", "Store", "open_store"]


class ProjectStore:
    """What one project has. An id of another project is an unknown id here.

    Attributes:
        project_id: Whose it is.
        jobs: Its jobs, with their events and checkpoints.
        files: Its files.
        models: Its finished adapters and checkpoints, by name.
        usage: What it used.
    """

    def __init__(self, scope: Scope, blobs: KeptBlobs) -> None:
        self.project_id = scope.project_id
        self.jobs = ProjectJobs(scope)
        self.files = ProjectFiles(scope, blobs)
        self.models = ProjectModels(scope)
        self.usage = ProjectUsage(scope)


class Store:
    """Everything that a service keeps. Starts no thread; safe to use from several.

    Attributes:
        database: For transactions of other kinds.
        blobs: Writes blobs for projects.
        tenants: Organisations and projects, for administrators.
        keys: Keys of all projects.
        page_sessions: Browsers that signed in with one of them.
        claims: Jobs of all projects, for runners.
    """

    def __init__(self, database: Database, blobs: BlobFolder, *, source: RandomSource | None = None) -> None:
        self._source = source or SystemSource()
        self.database = database
        self.blobs = KeptBlobs(database, blobs, self._source)
        self.tenants = Tenants(database, self._source)
        self.keys = Keys(database, self._source)
        self.page_sessions = PageSessions(database, self._source)
        self.claims = Claims(database, self._source)

    def project(self, project_id: str) -> ProjectStore:
        """Return what one project has."""
        return ProjectStore(Scope(self.database, self._source, project_id), self.blobs)

    def changes(self) -> Changes:
        """Begin to watch for new jobs and events."""
        return watch_changes(self.database)

    def collect_blobs(self) -> int:
        """Remove expired files and blobs that nothing refers to; return how many blobs there were."""
        return collect_blobs(self.database, self.blobs.folder)

    def keep_house(
        self, owner: str, *, every_seconds: float = 3600.0, retention: Retention | None = None
    ) -> Housekeeping | None:
        """Forget what is over, collect blobs and charge for stored bytes, if it is time; ``owner``: this process."""
        return keep_house(
            self.database, self.blobs.folder, owner=owner, every_seconds=every_seconds, retention=retention
        )

    def check(self) -> None:
        """Ask the database and the blobs whether they can be used: for a readiness check.

        Raises:
            StorageFull: one of them has no room.
            StoreUnavailable: one of them cannot be reached.
        """
        with self.database.read() as connection:
            self.database.now(connection)
            connection.exec_driver_sql("SELECT 1")
        self.blobs.folder.check()

    def close(self) -> None:
        self.database.close()


def open_store(
    place: str | Path,
    *,
    blobs: str | Path | None = None,
    clock: Clock | None = None,
    source: RandomSource | None = None,
) -> Store:
    """Open the store of a service, made or upgraded where need be.

    Args:
        place: The service's folder, which has a SQLite database then, or the database's URL.
        blobs: A folder or a URL for fsspec; None: ``blobs`` in the service's folder.
        clock: The time, in place of the database's.
        source: Randomness, in place of the system's.

    Raises:
        InputError: a place is none, or a database's URL comes without ``blobs``.
        NewerDatabaseError: a later version of Cohort has changed the database.
        StoreUnavailable: the database cannot be reached.
    """
    database = open_database(place, clock=clock)
    try:
        folder = open_blobs(_default_blobs(place) if blobs is None else blobs)
        migrate(database)
    except BaseException:
        database.close()
        raise
    return Store(database, folder, source=source)


def _default_blobs(place: str | Path) -> Path:
    if isinstance(place, str) and "://" in place:
        raise InputError(
            Problem(
                where="blobs",
                found="none, with the database at a URL",
                allowed="a folder that all server processes see, or a URL such as s3://BUCKET/PREFIX",
                hint="Give one.",
            )
        )
    return Path(place).absolute() / "blobs"
