"""Snapshots of models in training, from which a journal is repeated: state, last answers and versions in memory."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.core.durable_files import atomic_file, remove_leftovers
from cohort.core.errors import InputError, Problem
from cohort.training.client_training.client_models import ModelState

__all__ = ["ModelSnapshot", "SnapshotStore"]

_STATE = "state.safetensors"
_VERSION_SUFFIX = ".version.safetensors"
_WEIGHTS, _GRADIENTS = "weights", "gradients"


@dataclass(frozen=True, kw_only=True)
class ModelSnapshot:
    """A model as it was behind one of its calls.

    Attributes:
        number: That call's.
        state: What calls change; None for a model that could not be made.
        about: The model, the answers to its last calls and its versions in memory, as JSON has them.
    """

    model_id: str
    number: int
    state: ModelState | None
    about: dict[str, Any]


class SnapshotStore:
    """A folder of models' snapshots: the last one of each, and the versions that clients sample from."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, snapshot: ModelSnapshot) -> None:
        """Put a snapshot in place of the one before.

        Raises:
            StorageFullError: the disk is full; the one before stays.
        """
        about = {"model_id": snapshot.model_id, "number": snapshot.number, "has_state": snapshot.state is not None}
        tensors: dict[str, Tensor] = {}
        if (state := snapshot.state) is not None:
            tensors = dict(state.adapter.tensors)
            about["step"] = state.step
            if state.gradients is not None:
                tensors[_GRADIENTS] = state.gradients
        _save(self._folder(snapshot.model_id) / _STATE, tensors, {**about, "model": snapshot.about})

    def write_version(self, model_id: str, sampler_id: str, weights_rD: Tensor) -> None:
        """Keep a version that a client samples from, unless it is there: a version never changes.

        Raises:
            StorageFullError: the disk is full.
        """
        path = self._version_path(model_id, sampler_id)
        if not path.exists():
            _save(path, {_WEIGHTS: weights_rD}, {})

    def read_version(self, model_id: str, sampler_id: str) -> Tensor:
        """Return the rank rows of a version.

        Raises:
            InputError: its file is missing or damaged.
        """
        tensors, _ = _load(self._version_path(model_id, sampler_id))
        return tensors[_WEIGHTS]

    def keep_versions(self, model_id: str, sampler_ids: list[str]) -> None:
        """Remove the versions of a model that are none of ``sampler_ids``."""
        kept = {self._version_path(model_id, sampler_id) for sampler_id in sampler_ids}
        for path in self._folder(model_id).glob(f"*{_VERSION_SUFFIX}"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def read_all(self) -> Iterator[ModelSnapshot]:
        """Yield the snapshot of every model.

        Raises:
            InputError: a file is damaged.
        """
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            # what a killed writer left
            remove_leftovers(folder)
            if not (folder / _STATE).is_file():
                continue
            tensors, about = _load(folder / _STATE)
            state = None
            if about["has_state"]:
                weights, gradients = tensors.pop(_WEIGHTS), tensors.pop(_GRADIENTS, None)
                adapter = AdapterState(weights=weights, moments=tensors)
                state = ModelState(adapter=adapter, step=about["step"], gradients=gradients)
            yield ModelSnapshot(model_id=about["model_id"], number=about["number"], state=state, about=about["model"])

    def remove(self, model_id: str) -> None:
        """Remove what is kept of a model."""
        shutil.rmtree(self._folder(model_id), ignore_errors=True)

    def _folder(self, model_id: str) -> Path:
        return self._root / _file_name(model_id)

    def _version_path(self, model_id: str, sampler_id: str) -> Path:
        return self._folder(model_id) / f"{_file_name(sampler_id)}{_VERSION_SUFFIX}"


def _file_name(name: str) -> str:
    # ids are the server's own, but for the colons that no file system likes
    return re.sub(r"[^A-Za-z0-9_\-]", "_", name.replace(":", "-"))


def _save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    with atomic_file(path) as partial:
        own = {key: value.contiguous() for key, value in tensors.items()}
        save_file(own, partial, metadata={"about": json.dumps(about)})


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(
            Problem(
                where=str(path),
                found=f"no snapshot that can be read ({error})",
                allowed="the file as the server wrote it",
                hint="Restore it from a copy of the disk. Without one, remove the folder of its model: the model is "
                "lost then, and checkpoints that clients saved stay.",
            )
        ) from None
