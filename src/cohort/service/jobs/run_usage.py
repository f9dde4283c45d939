"""What a job has used so far, from its run's record: told while it trains and however it ends."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import Activity
from cohort.runs.reader import RunReader
from cohort.store.enums import UsageKind

__all__ = ["read_usage", "usage_of_run"]

_COMPUTING = (Activity.TRAIN, Activity.EVALUATE, Activity.GENERATE, Activity.COMPARE)


def read_usage(reader: RunReader) -> dict[UsageKind, float]:
    """Return what a run has used since its beginning, in total.

    Seconds are those of passes: of a step in which trials of several jobs ride, a job has its part of the tokens. The
    record has them up to the last checkpoint, the tokens up to the last step.
    """
    with reader.snapshot():
        facts, (trained, evaluated) = reader.facts(), reader.num_tokens()
    return {
        UsageKind.TRAINED_TOKENS: trained,
        UsageKind.EVALUATED_TOKENS: evaluated + (0 if facts.finals is None else facts.finals.num_tokens),
        UsageKind.GPU_SECONDS: sum(facts.seconds.get(activity, 0.0) for activity in _COMPUTING),
    }


def usage_of_run(run: Path) -> dict[UsageKind, float]:
    """Return the same of a run directory; nothing where the run has no record yet, or it cannot be read now."""
    database = RunDirectory(run).database
    if not database.is_file():
        return {}
    try:
        with RunReader.open(database) as reader:
            return read_usage(reader)
    except CohortError:
        return {}
