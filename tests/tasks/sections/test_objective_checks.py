"""What an objective and the rest of a task do not agree on is named with the key to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.tasks.loading import load_task
from tests.tasks.task_files import BASE, problems_of, write


@pytest.mark.parametrize(
    ("addition", "key", "found", "hint"),
    [
        ("search: {space: {beta: [0.1, 0.2]}}", "search.space.beta", "beta with sft", "objective: {type: dpo}"),
        ("objective: kto\ntraining: {batch_size: 1}", "training.batch_size", "batch_size 1 with kto", "Raise"),
        ("evaluation: {metric: reward_accuracy}", "evaluation.metric", "compares no answers", "metric: loss"),
        (
            "objective: dpo\nsearch: {space: {loss_type: [sigmoid, hinge], label_smoothing: [0.0, 0.1]}}",
            "search.space.label_smoothing",
            "loss_type: hinge",
            "Remove label_smoothing",
        ),
        (
            "objective: kto\nsearch: {space: {batch_size: [1, 4]}}",
            "search.space.batch_size",
            "batch_size 1 with kto",
            "apo_zero_unpaired",
        ),
        ("evaluation: {metrics: [reward_margin]}", "evaluation.metrics", "compares no answers", "Remove reward_margin"),
        (
            "objective: orpo\nsearch: {space: {label_smoothing: [0.0, 0.1]}}",
            "search.space.label_smoothing",
            "label_smoothing with orpo",
            "",
        ),
        (
            "objective: cpo\nsearch: {space: {loss_type: [sigmoid, robust]}}",
            "search.space.loss_type",
            "'robust'",
            "sigmoid",
        ),
    ],
)
def test_what_does_not_fit_the_rest_of_the_task_is_named(
    folder: Path, addition: str, key: str, found: str, hint: str
) -> None:
    (problem,) = problems_of(folder, BASE + addition + "\n")
    assert str(problem.where).endswith(key)
    assert found in problem.found
    assert hint in problem.hint


@pytest.mark.parametrize(
    "addition",
    [
        # without its KL term a batch of one has nothing to mismatch
        "objective: {type: kto, loss_type: apo_zero_unpaired}\ntraining: {batch_size: 1}",
        "objective: kto\ntraining: {batch_size: 1}\nsearch: {space: {batch_size: [2, 4]}}",
        "objective: dpo\nevaluation: {metric: reward_accuracy}",
        "objective: dpo\nsearch: {space: {loss_type: [sigmoid, hinge],"
        " label_smoothing: {values: [0.0, 0.1], when: {loss_type: sigmoid}}}}",
    ],
)
def test_what_fits_is_taken(folder: Path, addition: str) -> None:
    assert load_task(write(folder, BASE + addition + "\n")).objective.type in ("kto", "dpo")
