"""``cohort evaluate`` on a tiny run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cohort.adapter_files.evaluate import HeldOutEvaluation
from cohort.cli.adapters import evaluate
from cohort.core.statistics.estimates import Estimate
from cohort.runs.results.comparison import Contender
from tests.cli.command import cohort

Capture = pytest.CaptureFixture[str]


def test_the_best_beside_the_base(folder: Path, capsys: Capture) -> None:
    words = ("evaluate", folder / "run", "--data", folder / "train.jsonl", "--metric", "exact_match")
    code, out, err = cohort(capsys, *words, "--max-new-tokens", "3")
    assert (code, "Traceback" in err) == (0, False)
    assert f"24 of {folder / 'train.jsonl'}" in out
    assert "exact_match 0 (95 %: 0 to 0.138, 24 rows)" in out
    assert re.search(r"minus base [-+][0-9.e-]+ \(.*\), (better|worse|within noise)\n", out)
    code, out, _ = cohort(capsys, *words, "--max-new-tokens", "3", "--trials", "0,1", "--json")
    found = json.loads(out)
    assert [entry["trial"] for entry in found["results"]] == [0, 1, None]
    assert found["results"][0]["values"]["loss"]["num_rows"] == found["rows"] == 24
    assert set(found["results"][1]["first_minus_this"]) == {"loss", "exact_match"}


def test_a_base_that_is_the_reference_itself_is_no_measure(capsys: Capture) -> None:
    best = Contender(
        trial_id=3, step=9, values={"reward_accuracy": Estimate(value=0.45, low=0.33, high=0.58, num_rows=60)}
    )
    nothing = {"reward_accuracy": Estimate(value=0.0, low=0.0, high=0.06, num_rows=60)}
    base = Contender(trial_id=None, step=None, values=nothing, winner_minus=best.values)
    found = HeldOutEvaluation(
        data=Path("test.jsonl"),
        data_hash="",
        num_rows=60,
        num_read=60,
        metrics=("reward_accuracy",),
        contenders=(best, base),
        chance={"reward_accuracy": 0.5},
        so_far=None,
        notes=(),
    )
    evaluate._print(found, run_dir=Path("run"), as_json=False)
    out = capsys.readouterr().out
    assert "reward_accuracy 0 by definition: it is the reference; chance is 0.5" in out
    assert "minus base" not in out


@pytest.mark.parametrize(
    ("metric", "gap", "said"),
    [
        ("loss", (-0.2, -0.3, -0.1), ", better"),
        ("loss", (0.2, 0.1, 0.3), ", worse"),
        ("loss", (0.2, -0.1, 0.3), ", within noise"),
        ("exact_match", (0.2, 0.1, 0.3), ", better"),
        ("choice_accuracy", (-0.2, -0.3, -0.1), ", worse"),
        # which way is better is not known of a user's function
        ("my_distance", (0.2, 0.1, 0.3), ""),
        ("my_distance", (0.2, -0.1, 0.3), ", within noise"),
    ],
)
def test_a_difference_says_which_way_it_goes(
    metric: str, gap: tuple[float, float, float], said: str, capsys: Capture
) -> None:
    def estimate(value: float, low: float, high: float) -> Estimate:
        return Estimate(value=value, low=low, high=high, num_rows=60)

    values = {metric: estimate(0.5, 0.4, 0.6)}
    best = Contender(trial_id=3, step=9, values=values)
    base = Contender(trial_id=None, step=None, values=values, winner_minus={metric: estimate(*gap)})
    found = HeldOutEvaluation(
        data=Path("test.jsonl"),
        data_hash="",
        num_rows=60,
        num_read=60,
        metrics=(metric,),
        contenders=(best, base),
        chance={},
        so_far=None,
        notes=(),
    )
    evaluate._print(found, run_dir=Path("run"), as_json=False)
    assert f"trial 3 minus base {gap[0]:+g} (95 %: {gap[1]:+g} to {gap[2]:+g}){said}\n" in capsys.readouterr().out


def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    code, _, err = cohort(capsys, "evaluate", folder / "run", "--data", tmp_path / "no.jsonl")
    assert (code, "Traceback" in err) == (2, False)
    assert "command line --data" in err
    code, _, err = cohort(capsys, "evaluate", folder / "run", "--data", folder / "train.jsonl", "--trials", "7")
    assert code == 2
    assert "best, all, or some of 0, 1, 2, 3" in err
