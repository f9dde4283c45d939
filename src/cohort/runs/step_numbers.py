"""Numbers and answers of single steps, of trials that train on their own answers, without reading the steps between."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cohort.core.events import ReadAnswer
from cohort.runs.database import Database
from cohort.runs.log import answers_from_json, numbers_from_json

__all__ = ["StepNumbers"]


class StepNumbers:
    """Reads what steps report besides their loss."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def at(
        self, steps: Sequence[int], *, trials: Sequence[int] | None = None
    ) -> list[tuple[int, int, Mapping[str, float]]]:
        """Return trial, step and numbers of some steps, by trial and step; without those that a trial has not done.

        Args:
            trials: Those to read; None for all.
        """
        wanted = None if trials is None else json.dumps(list(trials))
        # the order of a CROSS JOIN is kept: a look-up for each point, where SQLite would else read the whole table
        rows = self._database.rows(
            "SELECT steps.trial_id, step, metrics FROM trials CROSS JOIN steps WHERE steps.trial_id = trials.trial_id "
            "AND step IN (SELECT value FROM json_each(?)) AND metrics <> '{}' "
            "AND (? IS NULL OR trials.trial_id IN (SELECT value FROM json_each(?))) ORDER BY steps.trial_id, step",
            (json.dumps(list(steps)), wanted, wanted),
        )
        return [(trial_id, step, numbers_from_json(text)) for trial_id, step, text in rows]

    def latest(self) -> dict[int, Mapping[str, float]]:
        """Return the numbers of the last step of each trial that has done one."""
        rows = self._database.rows(
            "SELECT steps.trial_id, metrics FROM steps JOIN (SELECT trial_id, MAX(step) AS last FROM steps "
            "GROUP BY trial_id) AS ends ON steps.trial_id = ends.trial_id AND step = last WHERE metrics <> '{}'"
        )
        return {trial_id: numbers_from_json(text) for trial_id, text in rows}

    def answers(self, trial_id: int, *, most: int) -> list[tuple[int, tuple[ReadAnswer, ...]]]:
        """Return the answers to read of at most ``most`` steps of a trial, from its first to its last one."""
        query = "SELECT step FROM steps WHERE trial_id = ? AND answers <> '[]' ORDER BY step"
        steps = [step for (step,) in self._database.rows(query, (trial_id,))]
        places = {round(place * (len(steps) - 1) / max(1, most - 1)) for place in range(most)} if steps else set()
        rows = self._database.rows(
            "SELECT step, answers FROM steps WHERE trial_id = ? AND step IN (SELECT value FROM json_each(?)) "
            "ORDER BY step",
            (trial_id, json.dumps([steps[place] for place in sorted(places)])),
        )
        return [(step, answers_from_json(text)) for step, text in rows]
