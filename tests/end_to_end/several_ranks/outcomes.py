"""What a run came to, whatever the order in which ranks told it."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.tiny_tasks import Outcome, outcome_of


def result_of(run: Path) -> Outcome:
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}
