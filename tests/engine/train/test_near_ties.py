"""Accuracies that lie a row apart are luck: in the last comparison the loss decides, where it tells trials apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.statistics.estimates import RowValues
from cohort.engine.train.evaluation import Measured
from cohort.engine.train.finals import Finals, _preferred_by_loss
from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from cohort.tuning.objective_metric import ObjectiveMetric, TieRule
from cohort.tuning.study_trial import BestCheckpoint
from tests.end_to_end.tiny_tasks import Interrupting, tiny_task, write_inputs

NUM_ROWS = 32
ACCURACY = ObjectiveMetric(name="reward_accuracy", maximize=True)


def measured(hits: int, loss: float, *, of_groups: bool = True, name: str = "reward_accuracy") -> Measured:
    """What a trial has on 32 rows: the first ``hits`` are right; losses differ from row to row by up to 0.1."""
    losses = tuple(loss + 0.1 * (row % 3 - 1) for row in range(NUM_ROWS))
    scores = (1.0,) * hits + (0.0,) * (NUM_ROWS - hits)
    rows = {"loss": RowValues(values=losses, weights=(1.0,) * NUM_ROWS), name: RowValues.of_scores(scores)}
    return Measured(
        validation_loss=rows["loss"].value,
        metrics={name: rows[name].value},
        num_tokens=NUM_ROWS,
        rows=rows,
        of_groups=frozenset(rows) if of_groups else frozenset({"loss"}),
    )


def preferred(*found: Measured, metric: ObjectiveMetric = ACCURACY) -> int:
    """Return which of the finalists, best by the metric first, is taken."""
    ranked = [BestCheckpoint(trial_id=n, step=4, value=0.0, validation_loss=0.0) for n in range(len(found))]
    return _preferred_by_loss(ranked, dict(enumerate(found)), metric=metric).trial_id


def test_one_pair_more_does_not_outweigh_a_loss_that_is_clearly_lower() -> None:
    assert preferred(measured(21, 0.7), measured(20, 0.5)) == 1
    assert preferred(measured(21, 0.7), measured(20, 0.6), measured(19, 0.5), measured(19, 0.5)) == 2


def test_an_accuracy_that_rows_tell_apart_stands() -> None:
    assert preferred(measured(28, 0.7), measured(14, 0.5)) == 0
    # the last is too far behind, whatever its loss
    assert preferred(measured(28, 0.7), measured(27, 0.6), measured(14, 0.5)) == 1


def test_a_loss_that_rows_do_not_tell_apart_settles_nothing() -> None:
    noisy = measured(20, 0.69)
    losses = tuple(loss + (-1.0) ** row for row, loss in enumerate(noisy.rows["loss"].values))
    rows = {**noisy.rows, "loss": RowValues(values=losses, weights=(1.0,) * NUM_ROWS)}
    assert preferred(measured(21, 0.7), replace(noisy, rows=rows)) == 0
    assert preferred(measured(21, 0.7), measured(20, float("nan"))) == 0


def test_answers_and_losses_and_earlier_runs_are_left_alone() -> None:
    answers = ObjectiveMetric(name="exact_match", maximize=True)
    found = [measured(hits, loss, of_groups=False, name="exact_match") for hits, loss in ((21, 0.7), (20, 0.5))]
    assert preferred(*found, metric=answers) == 0
    assert preferred(measured(21, 0.7), measured(20, 0.5), metric=ObjectiveMetric()) == 0
    assert preferred(measured(21, 0.7), measured(20, 0.5), metric=replace(ACCURACY, ties=TieRule.EARLIEST)) == 0


@pytest.mark.parametrize(("space", "winner"), [({"learning_rate": [1e-3, 1e-2]}, 1), ({"beta": [0.1, 0.5]}, 0)])
def test_a_sweep_of_pairs_returns_what_the_loss_prefers_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: dict[str, Any], winner: int
) -> None:
    folder = write_inputs(tmp_path)
    # rows of its own: reference log-probabilities are cached by their rows, and another test counts them
    pairs = [{"prompt": f"{n}+2=", "chosen": str(n + 2), "rejected": f"{n}?"} for n in range(24)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = {0: measured(21, 0.7), 1: measured(20, 0.5), None: measured(16, 0.9)}

    def as_given(self: Finals, contenders: Sequence[BestCheckpoint], **_: Any) -> Mapping[int | None, Measured]:
        assert {best.trial_id for best in contenders} == {0, 1}
        return given

    monkeypatch.setattr(Finals, "_measure", as_given)
    task = tiny_task(
        folder,
        dataset={"train": "pairs.jsonl"},
        training={"max_steps": 2},
        evaluation={"metric": "reward_accuracy"},
        search={"space": {"learning_rate": [1e-2], "r": 2, **space}},
        objective="dpo",
        early_exit="none",
    )
    watcher = Interrupting()
    tune(task, tmp_path / "run", watcher=watcher)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts = reader.facts()
    assert facts.best_trial_id == winner
    told = "trial 1 is better than trial 0 by its loss; these rows do not tell the two apart by reward accuracy"
    # losses of two betas have two scales
    assert (told in watcher.notes) == (winner == 1)
