"""Which models a tenant may ask for, and their way to an engine: bases of the server, and the tenant's own adapters."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.durable_files import remove_old_leftovers
from cohort.core.errors import StorageFullError
from cohort.service.access.refusals import ServiceError
from cohort.service.completion_answers import CompletionAnswers
from cohort.service.engine_thread import EngineThread
from cohort.service.opening import Opened
from cohort.service.served_model import PreparedRequest, ServedModel
from cohort.serving.adapter_registry import NameTakenError, UnknownAdapterError
from cohort.store.errors import UnknownIdError
from cohort.store.records import Checkpoint, Model
from cohort.store.store import Store

__all__ = ["ServedBaseModel", "ServedModels"]

# in the name of a cached adapter's folder, for that of its blob's name
_SLASH = "-"


@dataclass(frozen=True, kw_only=True)
class ServedBaseModel:
    """One base model with what answers with it."""

    name: str
    opened: Opened
    answers: CompletionAnswers

    @property
    def model(self) -> ServedModel:
        return self.opened.model

    @property
    def thread(self) -> EngineThread:
        return self.opened.thread


class ServedModels:
    """Finds models by name for a project; adapters are fetched and loaded when they are first asked for."""

    def __init__(self, bases: Mapping[str, ServedBaseModel], store: Store, *, cache: Path) -> None:
        """``cache`` is a folder for adapters whose blobs lie elsewhere."""
        self._bases, self._store, self._cache = dict(bases), store, cache
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}

    @property
    def bases(self) -> Mapping[str, ServedBaseModel]:
        return self._bases

    def find(self, name: str, *, project_id: str) -> ServedBaseModel:
        """Return the base that answers for a model, with its adapter known to the engine.

        Raises:
            ServiceError: the project has no such model.
            StoreUnavailable: the adapter cannot be fetched now.
        """
        if name in self._bases:
            return self._bases[name]
        base_name, blob = self._owned(name, project_id)
        base = self._bases.get(base_name)
        if base is None:
            text = f"The base model {base_name!r} of {name!r} is not served any more."
            raise ServiceError(text, status=404, param="model", code="model_not_found")
        self._load(base, name, blob)
        return base

    def scoped(self, prepared: PreparedRequest, *, project_id: str) -> PreparedRequest:
        """Return a request whose prompts are remembered for its project alone."""
        sequences = tuple(replace(each, cache_scope=project_id, tenant=project_id) for each in prepared.sequences)
        return replace(prepared, sequences=sequences)

    def forget(self, name: str) -> None:
        """Let an adapter go that was deleted; its running requests are finished."""
        for base in self._bases.values():
            try:
                base.model.pool.unload(name)
            except UnknownAdapterError:
                continue
        self._drop_removed()

    def _drop_removed(self) -> None:
        """Remove the adapters in the cache whose models were deleted, on this server or another one."""
        if not self._cache.is_dir():
            return
        remove_old_leftovers(self._cache)
        # until it is whole, what is being fetched has a name that begins with a point
        whole = (path for path in self._cache.iterdir() if _SLASH in path.name and not path.name.startswith("."))
        folders = {path.name.replace(_SLASH, "/"): path for path in whole}
        for name in folders.keys() - self._store.blobs.kept_of(folders):
            shutil.rmtree(folders[name], ignore_errors=True)

    def _owned(self, name: str, project_id: str) -> tuple[str, str]:
        own = self._store.project(project_id)
        found: Model | Checkpoint | None = own.models.checkpoint(name)
        base = None
        try:
            if found is None:
                found = model = own.models.get(name)
                base = model.base_model
            elif isinstance(found, Checkpoint):
                base = own.jobs.get(found.job_id).base_model
        except UnknownIdError:
            found = None
        if found is None or base is None or found.blob is None:
            text = f"The model {name[:200]!r} does not exist or you do not have access to it."
            raise ServiceError(text, status=404, param="model", code="model_not_found")
        return base, found.blob

    def _load(self, base: ServedBaseModel, name: str, blob: str) -> None:
        try:
            base.model.pool.handle(name)
        except UnknownAdapterError:
            pass
        else:
            return
        with self._lock:
            lock = self._loading.setdefault(name, threading.Lock())
        # one fetch for all requests that wait for it
        try:
            # a request that came a moment earlier may have loaded it
            with lock, contextlib.suppress(NameTakenError):
                base.model.pool.load(name, self._fetched(blob))
        finally:
            with self._lock:
                self._loading.pop(name, None)

    def _fetched(self, blob: str) -> Path:
        """Return the folder of an adapter on this server's disk; it is fetched if it is not there."""
        folder = self._store.blobs.folder.local_path(blob)
        if folder is None:
            folder = self._cache / blob.replace("/", _SLASH)
            if not folder.is_dir():
                self._drop_removed()
                try:
                    self._store.blobs.folder.fetch_folder(blob, folder)
                except OSError as error:
                    raise StorageFullError(f"no room for an adapter in {self._cache}") from error
        return folder
