"""What a sweep cost against the full grid, counted by hand."""

from __future__ import annotations

import pytest

from cohort.runs.results.results import read_results
from tests.runs.small_run import SmallRun


def test_compute_saved_by_hand(run: SmallRun) -> None:
    compute = read_results(run[1].reader).compute
    assert compute.trained_tokens == 4 * 100 + 100 + 50
    assert compute.evaluation_tokens == 3 * 50
    # trial 2 planned no tokens: 50 a step, four steps
    assert compute.planned_tokens == 3 * 400 + 200
    assert (compute.trained_samples, compute.planned_samples) == (6 * 2, 16 * 2)
    assert compute.cost_tokens == 550 + 75
    assert compute.share_of_full_grid == pytest.approx(625 / 1400)
    assert compute.evaluated_share == pytest.approx(75 / 1400)
    assert compute.num_full_runs == pytest.approx(4 * 625 / 1400)
