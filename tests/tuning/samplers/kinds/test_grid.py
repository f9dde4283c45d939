"""The grid: its order in waves, without optuna."""

from __future__ import annotations

import sys

import pytest

from cohort.core.errors import InputError
from cohort.tuning.samplers import build_sampler
from cohort.tuning.space_syntax import parse_space

LISTS = parse_space(
    {"learning_rate": [1e-5, 1e-4, 1e-3], "r": [8, 16], "lora_alpha": "2r", "batch_size": [1, 2], "seed": 3}
)


RANGES = parse_space(
    {
        "learning_rate": {"min": 1e-5, "max": 1e-3, "log": True},
        "r": {"min": 4, "max": 64, "log": True},
        "lora_alpha": ["r", "2r"],
        "weight_decay": {"min": 0.0, "max": 0.1, "step": 0.05},
    }
)


def test_a_grid_comes_in_waves_in_its_order() -> None:
    sampler = build_sampler("grid", LISTS, trials=5)
    waves = [sampler.propose(5), sampler.propose(5), sampler.propose(5), sampler.propose(5)]
    assert [len(wave) for wave in waves] == [5, 5, 2, 0]
    assert [configuration for wave in waves for configuration in wave] == list(LISTS.configurations())


def test_a_grid_needs_no_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert len(build_sampler("grid", LISTS).propose(99)) == 12
    with pytest.raises(InputError, match="tpe, which needs the package optuna"):
        build_sampler("tpe", LISTS, trials=3)


def test_a_grid_refuses_an_undivided_range_at_once() -> None:
    with pytest.raises(InputError, match="a range without num or step"):
        build_sampler("grid", RANGES)
