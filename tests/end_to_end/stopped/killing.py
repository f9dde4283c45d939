"""A task that is carried out undisturbed once, and then killed and resumed until it comes to the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import Outcome, outcome_of

__all__ = ["Killing"]

EVERYTHING = ("steps", "evaluations", "decisions", "best", "adapters")


class Killing:
    """A task, what it comes to undisturbed, and how long that takes."""

    def __init__(
        self, server: ForkServer, folder: Path, sections: dict[str, Any], *, names: Sequence[str] = EVERYTHING
    ) -> None:
        """Carry the task out twice; ``names`` are those parts of the outcome that must be the same each time."""
        self.names = names
        self.server, self.folder, self.sections = server, folder, sections
        self.command = {"folder": str(folder), "sections": sections}
        # the first run fills the cache of tokenised rows; the second is what later ones are like
        for name in ("first", "undisturbed"):
            began = time.monotonic()
            assert server.run({**self.command, "act": "tune", "run": str(folder / name)}) == 0
            self.seconds = time.monotonic() - began
        self.expected: Outcome = outcome_of(folder / "undisturbed")
        self.assert_same(folder / "first")

    def go_on(self, run: Path, **disturbance: Any) -> int:
        """Resume what there is, else begin."""
        begun = (run / "run.db").exists() or (run / "task.yaml").exists()
        command = {**self.command, "act": "resume" if begun else "tune", "run": str(run)}
        return self.server.run({**command, **disturbance.pop("command", {})}, **disturbance)

    def assert_same(self, run: Path) -> None:
        found = outcome_of(run)
        for name in self.names:
            assert found[name] == self.expected[name], name
        assert [path for path in run.rglob("*") if "partial" in path.name] == []
