"""What is kept of a trial that is out of the bank, and under which name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

__all__ = ["StoredState", "StoredStateKind"]


class StoredStateKind(StrEnum):
    """What is kept of a trial, which starts its file's name."""

    STATE = "state"
    BEST = "best"
    START = "start"
    """The weights that a trial begins with, where they are another trial's."""
    SPARE = "spare"
    """The state of a trial that a rule stopped, in case a person resumes it; only in memory, and the first to go."""


@dataclass(frozen=True, order=True)
class StoredState:
    """The name of one state or best checkpoint."""

    trial_id: int
    kind: StoredStateKind
    step: int

    @property
    def relative_path(self) -> str:
        return f"trials/{self.trial_id:04d}/{self.kind.value}-{self.step:06d}.safetensors"

    @classmethod
    def of_path(cls, path: str | PurePath) -> StoredState:
        """Return the state that a file of this name holds; ``path`` ends like :attr:`relative_path`."""
        path = PurePath(path)
        kind, step = path.stem.split("-")
        return cls(int(path.parent.name), StoredStateKind(kind), int(step))
