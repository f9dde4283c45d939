"""Settings are checked on creation and documented defaults hold."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cohort.core.errors import InputError
from cohort.tuning.early_exit import EarlyExitSettings, build_rules
from cohort.tuning.early_exit.lookup import EXIT_RULES, built_in_keys
from cohort.tuning.early_exit.settings import OTHER_WORDS, compares_to_the_end
from cohort.tuning.evaluation_times import EvaluationSettings, EvaluationTimes, plan_candidate


def test_the_defaults_of_the_paper() -> None:
    settings = EarlyExitSettings()
    assert (settings.warmup_fraction, settings.select_fraction, settings.window) == (0.05, 0.4, 2)
    assert (settings.reselect_at, settings.reselect_fraction) == (0.2, 0.375)
    assert (settings.finish_at, settings.finish_fraction, settings.finish_noise) == (0.65, 0.66, 3.0)
    assert settings.overfitting_ignores_new_best
    assert (settings.divergence_patience, settings.overfitting_patience) == (2, 4)
    assert (settings.gap_threshold, settings.slope_threshold, settings.ema_weight) == (0.3, 0.001, 0.1)
    assert settings.rule == "patterns"


def test_other_keys_of_the_same_rule_or_of_another() -> None:
    settings = EarlyExitSettings(window=4, ema_weight=0.5)
    assert settings.with_keys(gap_threshold=1.0) == EarlyExitSettings(window=4, ema_weight=0.5, gap_threshold=1.0)
    assert settings.with_keys(rule="asha") == EarlyExitSettings(rule="asha", ema_weight=0.5)


def test_a_key_of_a_rule_that_is_not_active_is_checked_and_has_no_effect() -> None:
    assert EarlyExitSettings(rule="none", window=5) == EarlyExitSettings(rule="none")
    with pytest.raises(AttributeError, match="the rule 'none' has no setting 'window'"):
        _ = EarlyExitSettings(rule="none", window=5).window


def test_settings_survive_a_copy_and_a_process_border() -> None:
    settings = EarlyExitSettings(rule="halving", reduction_factor=4)
    assert copy.deepcopy(settings) == pickle.loads(pickle.dumps(settings)) == settings


def test_a_misspelt_rule_or_key_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'medain'.*Did you mean median\?"):
        EarlyExitSettings(rule="medain")
    with pytest.raises(InputError, match=r"Did you mean select_fraction\?"):
        EarlyExitSettings(select_fracton=0.5)


def test_what_is_shown_can_be_written_again() -> None:
    settings = EarlyExitSettings(rule="asha", reduction_factor=3)
    assert repr(settings).startswith("EarlyExit(rule='asha', warmup_fraction=0.05, ")
    assert eval(repr(settings), {"EarlyExit": EarlyExitSettings}) == settings


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(InputError, match=r"early_exit\.windows: found an unknown key; allowed: window and \d+ others"):
        EarlyExitSettings(windows=2)
    # Optuna's name, which no letters tell
    with pytest.raises(InputError, match=r"early_exit\.eta: .*Did you mean reduction_factor\?"):
        EarlyExitSettings(eta=3)
    with pytest.raises(InputError, match=r"early_exit\.zzz: .*Choose one of these or remove it\."):
        EarlyExitSettings(zzz=3)
    assert set(OTHER_WORDS.values()) <= {"rule", *built_in_keys()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rule", "paterns"),
        ("warmup_fraction", 0.0),
        ("warmup_fraction", 1.5),
        ("select_fraction", 0),
        ("select_fraction", float("nan")),
        ("window", 1),
        ("window", 2.0),
        ("divergence_patience", 0),
        ("overfitting_patience", True),
        ("overfitting_ignores_new_best", 1),
        ("reselect_at", 0),
        ("reselect_fraction", 1.5),
        ("slope_threshold", -0.1),
        ("gap_threshold", float("inf")),
        ("ema_weight", 0.0),
        ("patience", 0),
        ("min_improvement", -1.0),
        ("reduction_factor", 1),
        ("startup_trials", 0),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        EarlyExitSettings(**{name: value})
    (problem,) = caught.value.problems
    assert str(problem.where) == f"early_exit.{name}"
    assert problem.found == repr(value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        EarlyExitSettings(window=0, patience=0, ema_weight=2.0)
    assert len(caught.value.problems) == 3


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EarlyExitSettings().rule = "none"  # type: ignore[misc]


def test_rules_by_name_in_the_order_they_are_asked() -> None:
    names = {rule: [r.name for r in build_rules(EarlyExitSettings(rule=rule))] for rule in EXIT_RULES.names()}
    known = {
        "patterns": ["non_finite", "divergence", "overfitting", "warmup_selection"],
        "patience": ["non_finite", "patience"],
        "halving": ["non_finite", "halving"],
        "asha": ["non_finite", "asha"],
        "hyperband": ["non_finite", "hyperband"],
        "median": ["non_finite", "median"],
        "none": ["non_finite"],
    }
    assert {rule: names[rule] for rule in known} == known
    for rule, asked in names.items():
        assert asked[0] == "non_finite", f"{rule} compares numbers before they are known to be finite"
        assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("args", "keys", "told"),
    [
        ((), {"rule": "medain"}, r"early_exit\.rule: found 'medain'; .*Did you mean median\?"),
        ((), {"rule": 3}, r"early_exit\.rule: found 3"),
        ((), {"select_fracton": 0.5}, r"Did you mean select_fraction\?"),
        (("median",), {}, r"EarlyExit: found 'median' without a name; .*Write EarlyExit\(rule=\.\.\.\)"),
    ],
)
def test_misspelt_rules_and_keys_are_input_errors(args: tuple[Any, ...], keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        EarlyExitSettings(*args, **keys)


def test_numbers_of_numpy_are_numbers() -> None:
    settings = EarlyExitSettings(select_fraction=np.float64(0.25), window=np.int64(3))  # type: ignore[arg-type]
    assert settings == EarlyExitSettings(select_fraction=0.25, window=3)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [("patterns", (50, 200, 650)), ("halving", (50, 150, 450)), ("asha", (50, 150, 450)), ("median", (50,))],
)
def test_where_trials_are_compared_is_always_evaluated(rule: str, steps: tuple[int, ...]) -> None:
    settings, evaluation = EarlyExitSettings(rule=rule), EvaluationSettings()
    *_, fewest = EvaluationTimes.of(evaluation).thinner(settings.milestones or ())
    candidate = plan_candidate(0, planned_steps=1000, warmup_fraction=0.05, settings=evaluation, times=fewest)
    assert candidate.evaluation_steps == (*steps, 1000)


def test_hyperband_is_evaluated_at_the_rungs_of_all_its_brackets() -> None:
    settings = EarlyExitSettings(rule="hyperband", warmup_fraction=0.1)
    assert settings.milestones == (Fraction(1, 3), Fraction(1, 9))


def test_patience_counts_evaluations_and_needs_them_all() -> None:
    assert EarlyExitSettings(rule="patience").milestones is None


def test_how_many_trials_reach_a_share_of_their_steps() -> None:
    settings = EarlyExitSettings()
    assert [settings.kept_at(share) for share in (0.0, 0.05, 0.1, 0.2, 0.21, 0.65, 0.66, 1.0)] == pytest.approx(
        [1, 1, 0.4, 0.4, 0.15, 0.15, 0.099, 0.099]
    )
    once = EarlyExitSettings(select_fraction=0.25, reselect_fraction=1.0)
    assert [once.kept_at(share) for share in (0.05, 0.2, 1.0)] == [1, 0.25, 0.25]
    assert EarlyExitSettings(rule="none").kept_at(1.0) == 1.0


def test_some_rules_compare_trials_to_their_end() -> None:
    found = {name for name in EXIT_RULES.names() if compares_to_the_end(EarlyExitSettings(rule=name))}
    assert found == {"asha", "median"}
