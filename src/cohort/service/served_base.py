"""The base model that a server answers with, known by its content: adapters of any other are refused."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.prepare.fingerprints import model_fingerprint
from cohort.service.adapter_folders import recorded_base_hash

__all__ = ["OtherBaseError", "ServedBase"]


class OtherBaseError(InputError):
    """An adapter was, or will be, trained on another base model."""


class ServedBase:
    """The weights that are served. Their hash is computed when it is first asked for, and kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over ``config.json`` and ``*.safetensors`` (hex)."""
        return model_fingerprint(self._directory)

    def check(self, adapter: Path) -> None:
        """Check an adapter whose card says on which weights it was trained.

        Raises:
            OtherBaseError: on others.
        """
        recorded = recorded_base_hash(adapter)
        if recorded is not None:
            self.require(recorded, of=str(adapter))

    def require(self, sha256: str, *, of: str) -> None:
        """Check that ``sha256`` is that of the served weights, on which the adapter ``of`` was or will be trained.

        Raises:
            OtherBaseError: it is another one's.
        """
        if sha256 != self.sha256:
            raise OtherBaseError(
                Problem(
                    where=of,
                    found=f"an adapter of another base model (SHA-256 {sha256[:12]})",
                    allowed=f"adapters of the served one: SHA-256 {self.sha256[:12]} over config.json and "
                    "*.safetensors",
                    hint="Serve the model that the adapter was trained on: on any other its answers are wrong.",
                )
            )
