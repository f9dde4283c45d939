"""The tables of the comparisons at the end."""

from __future__ import annotations

from pathlib import Path

from cohort.report.final_comparison import final_comparisons
from tests.runs.results.test_verdicts import CLOSE, FAR, results_with


def test_each_contender_has_a_row_that_says_whether_the_best_is_better(tmp_path: Path) -> None:
    results = results_with(tmp_path / "run", base=FAR, runner_up=CLOSE, default_id=0, metric="exact_match")
    (table,) = final_comparisons(results)
    assert table["columns"] == ["", "trial", "step", "exact match", "validation loss"]
    best, default, base = table["rows"]
    assert (best["cells"][:4], best["gain"], best["is_best"]) == (["best", "1", "4", "0.9 (0.699 to 0.9721)"], "", True)
    assert default["cells"][:3] == ["default", "0", "4"]
    assert default["gain"].startswith("within noise: better by 0.05 (-")
    assert base["cells"][:3] == ["base model", "–", "–"]
    assert base["gain"].startswith("better by 0.85 (")
    assert "all 20 validation rows" in table["note"]
