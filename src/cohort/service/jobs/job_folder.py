"""What a node keeps of a job: its rows, its task, the claim to it, and how far its record was told."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cohort.core.durable_files import write_text
from cohort.store.jobs.claims import Claim

__all__ = ["JobFolder"]

_CLAIM, _TASK, _NOTES = "claim.json", "task.json", "notes.json"


class JobFolder:
    """One folder for each job, named by its id. Every file is whole or absent.

    Attributes:
        path: The folder.
    """

    def __init__(self, root: Path, job_id: str) -> None:
        self.path = root / job_id

    @staticmethod
    def all_in(root: Path) -> list[JobFolder]:
        """Return the folders of all jobs that this node has had, by name."""
        if not root.is_dir():
            return []
        return [JobFolder(root, entry.name) for entry in sorted(root.iterdir()) if entry.is_dir()]

    @property
    def task(self) -> dict[str, Any] | None:
        """The job's task; None before its rows were checked here."""
        return self._read(_TASK)

    def keep_task(self, document: dict[str, Any]) -> None:
        self._write(_TASK, document)

    @property
    def claim(self) -> Claim | None:
        """The claim that this node has, or had when it was killed."""
        found = self._read(_CLAIM)
        return None if found is None else Claim(**found)

    def keep_claim(self, claim: Claim) -> None:
        self._write(_CLAIM, asdict(claim))

    def drop_claim(self) -> None:
        (self.path / _CLAIM).unlink(missing_ok=True)

    @property
    def notes(self) -> dict[str, Any]:
        """What the runner has to remember: positions told, files published."""
        return self._read(_NOTES) or {}

    def note(self, **values: Any) -> None:
        self._write(_NOTES, {**self.notes, **values})

    def remove(self) -> None:
        """Remove everything: the job has ended."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / name, json.dumps(value))
