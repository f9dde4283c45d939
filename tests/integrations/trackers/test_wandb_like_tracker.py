"""W&B and Trackio, over a fake that behaves as their modules do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.integrations.trackers.wandb_like_tracker import trackio_tracker, wandb_tracker
from tests.integrations.trackers.two_trials import FakeHosted, settings_in, train_two


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted_trackers_keep_one_run_a_trial(tmp_path: Path, name: str) -> None:
    hosted = FakeHosted()
    settings = settings_in(tmp_path)
    train_two(wandb_tracker(settings, wandb=hosted) if name == "wandb" else trackio_tracker(settings, trackio=hosted))
    keys = [run.options.get("id") or run.options["name"] for run in hosted.runs]
    # trial 0 was parked, so its run was finished and continued
    assert keys == ["abc-0000", "abc-0001", "abc-0000", "abc-0000"]
    assert all(run.finished for run in hosted.runs)
    assert all(run.options["group"] == "gsm8k" and run.options["resume"] == "allow" for run in hosted.runs)
    assert hosted.runs[0].options["config"]["r"] == 8
    losses = [(step, numbers["train/loss"]) for step, numbers in hosted.logged["abc-0000"] if "train/loss" in numbers]
    assert losses == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert (2, {"eval/loss": 1.5, "eval/exact_match": 0.5}) in hosted.logged["abc-0000"]
    assert hosted.logged["abc-0000"][-1] == (3, {"finals/loss": 1.25, "test/loss": 1.75})
    assert hosted.logged["abc-0000"][-2] == (3, {"decision/kind": "stop", "decision/reason": "overfitting"})
