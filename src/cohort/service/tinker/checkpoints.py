"""Checkpoints of clients' models on disk: ``tinker://MODEL/weights/NAME`` is a folder that PEFT loads.

A training checkpoint has the optimizer's state next to the adapter. A folder appears whole or not at all.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from cohort.adapter_files.write import AdapterContent, write_adapter_files
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.durable_files import PARTIAL_SUFFIX, atomic_directory, remove_leftovers, write_text
from cohort.core.errors import CohortError, InputError, Problem
from cohort.service.tinker.owners import ANYONE, may_know
from cohort.training.client_training.client_models import ModelState

__all__ = ["Checkpoint", "CheckpointStore", "UnknownCheckpointError"]

_URI = re.compile(r"tinker://([^/]+)/(weights|sampler_weights)/([^/]+)")
_log = logging.getLogger(__name__)
_KINDS = ("weights", "sampler_weights")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_ABOUT, _STATE = "checkpoint.json", "state.safetensors"


class UnknownCheckpointError(CohortError):
    """There is no checkpoint under this address."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved model.

    Attributes:
        uri: Its address.
        kind: ``weights`` or ``sampler_weights``.
        folder: Where it is.
        about: What was saved with it.
    """

    uri: str
    kind: str
    name: str
    folder: Path
    about: dict[str, Any]

    @property
    def owner(self) -> str:
        return str(self.about.get("owner", ANYONE))

    @property
    def is_public(self) -> bool:
        """Whether every key may read it."""
        return bool(self.about.get("public", False))

    @property
    def expires_at(self) -> float | None:
        found: float | None = self.about.get("expires_at")
        return found

    @property
    def is_over(self) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and self.expires_at <= time.time()

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())


class CheckpointStore:
    """The folder of a server's checkpoints, one folder a model in it."""

    def __init__(self, root: Path, *, base_model: str, layout: AdapterLayout) -> None:
        self._root, self._base_model, self._layout = root, base_model, layout
        # held for moments only: what has expired must not go as another checkpoint takes its place, or gets more time
        self._lock, self._being_saved = threading.Lock(), set[Path]()

    def check_name(self, name: str | None) -> str:
        """Return the name of a new checkpoint.

        Raises:
            InputError: it is none.
        """
        if name is None or not _NAME.fullmatch(name):
            raise InputError(
                Problem(
                    where="path",
                    found=repr(name)[:80],
                    allowed="up to 128 letters, digits, '_', '-' and '.', of which the first is a letter or digit",
                    hint="Save under such a name.",
                )
            )
        return name

    def uri(self, model_id: str, kind: str, name: str) -> str:
        return f"tinker://{model_id}/{kind}/{name}"

    def save(
        self,
        model_id: str,
        kind: str,
        name: str,
        *,
        spec: AdapterSpec,
        state: ModelState,
        about: dict[str, Any],
        ttl_seconds: int | None,
    ) -> str:
        """Write a checkpoint in place of one of the same name and return its address.

        Raises:
            StorageFullError: the disk is full; what was there is untouched.
        """
        folder = self._folder(model_id, kind, name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        now = time.time()
        described = {
            **about,
            "rank": spec.r,
            "step": state.step,
            "time": now,
            "expires_at": None if ttl_seconds is None else now + ttl_seconds,
        }
        with self._marked(folder), atomic_directory(folder) as partial:
            content = AdapterContent(
                weights_rD=state.adapter.weights,
                layout=self._layout,
                spec=spec,
                base_model=self._base_model,
                linears=tuple(self._layout.linears),
                card=f"# {name}\n\nStep {state.step} of {model_id} on {self._base_model}.\n",
                tokenizer_files={},
            )
            write_adapter_files(partial, content)
            if kind == "weights":
                tensors: dict[str, Tensor] = dict(state.adapter.tensors)
                if state.gradients is not None:
                    tensors["gradients"] = state.gradients
                save_file({key: value.contiguous() for key, value in tensors.items()}, partial / _STATE)
            (partial / _ABOUT).write_text(json.dumps(described), encoding="utf-8")
        return self.uri(model_id, kind, name)

    @contextmanager
    def _marked(self, folder: Path) -> Iterator[None]:
        """Note that a checkpoint is being saved; a model saves one at a time."""
        with self._lock:
            self._being_saved.add(folder)
        try:
            yield
        finally:
            with self._lock:
                self._being_saved.discard(folder)

    def exists(self, model_id: str, kind: str, name: str) -> bool:
        """Return whether there is a checkpoint of this name that has not expired."""
        folder = self._folder(model_id, kind, name)
        return self._read(folder, uri=self.uri(model_id, kind, name), kind=kind, name=name) is not None

    def find(self, uri: str, *, asker: str, to_change: bool = False) -> Checkpoint:
        """Return the checkpoint at an address.

        Args:
            to_change: Only one of ``asker``'s own; otherwise published ones are found as well.

        Raises:
            UnknownCheckpointError: there is none, it has expired, or it is another key's.
        """
        parts = _URI.fullmatch(uri)
        if parts is not None and _NAME.fullmatch(parts[3]):
            folder = self._folder(parts[1], parts[2], parts[3])
            found = self._read(folder, uri=uri, kind=parts[2], name=parts[3])
            if found is not None and (may_know(asker, found.owner) or (found.is_public and not to_change)):
                return found
        raise UnknownCheckpointError(f"there is no checkpoint {uri[:200]}; allowed: tinker://MODEL/weights/NAME of one")

    def of_model(self, model_id: str, *, asker: str) -> list[Checkpoint]:
        """Return a model's checkpoints that ``asker`` may know, the newest first."""
        found = []
        for kind in _KINDS:
            parent = self._folder(model_id, kind, "any").parent
            for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
                # one that is being written has its description already
                if not _NAME.fullmatch(folder.name):
                    continue
                uri = self.uri(model_id, kind, folder.name)
                each = self._read(folder, uri=uri, kind=kind, name=folder.name)
                if each is not None and may_know(asker, each.owner):
                    found.append(each)
        return sorted(found, key=lambda each: each.about["time"], reverse=True)

    def models(self) -> Iterator[str]:
        """Yield the models that have checkpoints."""
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            # what begins with a dot is the server's own
            if folder.name.startswith("."):
                continue
            yield folder.name.replace("=", ":")

    def remove_leftovers(self) -> None:
        """Remove what a killed server was writing or removing; call it before the first :meth:`save`."""
        for model_id in self.models():
            for kind in _KINDS:
                remove_leftovers(self._folder(model_id, kind, "any").parent)

    def remove_expired(self) -> None:
        """Remove the checkpoints whose time is over; reading one that has expired removes it as well."""
        for model_id in self.models():
            for kind in _KINDS:
                parent = self._folder(model_id, kind, "any").parent
                for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
                    if not _NAME.fullmatch(folder.name):
                        continue
                    self._read(folder, uri=self.uri(model_id, kind, folder.name), kind=kind, name=folder.name)

    def load(self, checkpoint: Checkpoint, *, optimizer: bool) -> ModelState:
        """Return the state of a training checkpoint, without the optimizer's unless ``optimizer``.

        Raises:
            UnknownCheckpointError: it is one for sampling alone.
            InputError: it was saved on a base model of other sizes.
        """
        if checkpoint.kind != "weights":
            raise UnknownCheckpointError(
                f"{checkpoint.uri} is for sampling; allowed: a training checkpoint, tinker://MODEL/weights/NAME"
            )
        tensors = load_file(checkpoint.folder / _STATE)
        weights, gradients = tensors.pop("weights"), tensors.pop("gradients", None)
        if weights.shape[1] != self._layout.width:
            raise InputError(
                Problem(
                    where="path",
                    found=f"{checkpoint.uri}, saved on {checkpoint.about.get('base_model')}",
                    allowed=f"a checkpoint of {self._base_model}, which this server trains",
                    hint="Load it into a server of the model that it was saved on.",
                )
            )
        if not optimizer:
            return ModelState(adapter=AdapterState(weights=weights))
        return ModelState(
            adapter=AdapterState(weights=weights, moments=tensors), step=checkpoint.about["step"], gradients=gradients
        )

    def delete(self, checkpoint: Checkpoint) -> None:
        shutil.rmtree(self._hide(checkpoint.folder), ignore_errors=True)

    def _hide(self, folder: Path) -> Path:
        """Take a checkpoint out of sight and return where it is: the next start removes one that was not removed."""
        hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        with suppress(FileNotFoundError):
            folder.rename(hidden)
        return hidden

    def set_expiry(self, checkpoint: Checkpoint, *, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire in ``ttl_seconds``, or never.

        Raises:
            UnknownCheckpointError: it has expired meanwhile, or another one takes its place.
        """
        self._describe(checkpoint, expires_at=None if ttl_seconds is None else time.time() + ttl_seconds)

    def set_public(self, checkpoint: Checkpoint, *, public: bool) -> None:
        """Let every key read a checkpoint, or its owner's alone; raises as :meth:`set_expiry` does."""
        self._describe(checkpoint, public=public)

    def _describe(self, checkpoint: Checkpoint, **changed: float | bool | None) -> None:
        with self._lock:
            about = _about(checkpoint.folder)
            is_same = about is not None and about["time"] == checkpoint.about["time"]
            if about is None or not is_same or checkpoint.folder in self._being_saved:
                raise UnknownCheckpointError(f"{checkpoint.uri} has expired, was removed, or another takes its place")
            # whole or not at all: a checkpoint without it would be lost
            write_text(checkpoint.folder / _ABOUT, json.dumps({**about, **changed}))

    def _read(self, folder: Path, *, uri: str, kind: str, name: str) -> Checkpoint | None:
        about = _about(folder)
        if about is None:
            return None
        found = Checkpoint(uri=uri, kind=kind, name=name, folder=folder, about=about)
        if found.is_over:
            self._expire(found)
            return None
        return found

    def _expire(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            about = _about(checkpoint.folder)
            # it may have got more time since it was read; one that takes its place must stay
            is_over = about is not None and replace(checkpoint, about=about).is_over
            if not is_over or checkpoint.folder in self._being_saved:
                return
            try:
                hidden = self._hide(checkpoint.folder)
            except OSError as error:
                # clients do not find it, and others are still found
                _log.warning("%s, which has expired, is removed later: %s", checkpoint.uri, error)
                return
        shutil.rmtree(hidden, ignore_errors=True)

    def _folder(self, model_id: str, kind: str, name: str) -> Path:
        # a colon is no part of a file's name everywhere, and an id is the server's own, far shorter than a file's name
        # may be: nothing leads out of the root
        safe = re.sub(r"[^A-Za-z0-9_.\-=]", "_", model_id.replace(":", "=")).lstrip(".")[:128] or "_"
        return self._root / safe / kind / name


def _about(folder: Path) -> dict[str, Any] | None:
    """Return what describes a checkpoint; None where there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
