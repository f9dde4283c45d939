"""Samplers: budget, repeats, seeds, and learning from what they are told."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest

from cohort.core.errors import InputError
from cohort.tuning.samplers import Sampler, build_sampler
from cohort.tuning.space import configuration_key
from cohort.tuning.space_syntax import parse_space

DRAWN = ["random", "tpe"]
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


def configurations(sampler: Sampler, num: int) -> list[dict[str, object]]:
    return [dict(configuration) for configuration in sampler.propose(num)]


@pytest.mark.parametrize("name", DRAWN)
def test_a_first_wave_proposes_the_budget_of_distinct_plain_configurations(name: str) -> None:
    proposals = build_sampler(name, RANGES, trials=40, seed=1).propose(100)
    assert len({configuration_key(configuration) for configuration in proposals}) == len(proposals) == 40
    for c in proposals:
        assert {key: type(value) for key, value in c.items()} == {
            "learning_rate": float,
            "r": int,
            "lora_alpha": int,
            "weight_decay": float,
        }
        assert c["lora_alpha"] in (c["r"], 2 * int(c["r"]))
        assert 1e-5 <= float(c["learning_rate"]) <= 1e-3
        assert c["weight_decay"] in (0.0, 0.05, 0.1)


@pytest.mark.parametrize("name", DRAWN)
def test_a_small_space_is_used_up_without_repeats(name: str) -> None:
    sampler = build_sampler(name, LISTS, trials=60)
    proposals = configurations(sampler, 7) + configurations(sampler, 53)
    assert sorted(map(repr, proposals)) == sorted(map(repr, LISTS.configurations()))
    assert sampler.propose(1) == ()


@pytest.mark.parametrize("name", DRAWN)
def test_a_small_range_of_whole_numbers_is_used_up_without_repeats(name: str) -> None:
    sampler = build_sampler(name, parse_space({"r": {"min": 1, "max": 64, "log": True}}), trials=99)
    assert sorted(int(str(c["r"])) for c in configurations(sampler, 99)) == list(range(1, 65))


@pytest.mark.parametrize("name", DRAWN)
def test_every_value_of_a_divided_range_is_proposed_and_none_beyond(name: str) -> None:
    sampler = build_sampler(name, parse_space({"learning_rate": {"min": 0.1, "max": 0.5, "num": 5}}), trials=30)
    found = sorted(float(str(c["learning_rate"])) for c in configurations(sampler, 30))
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize("name", DRAWN)
def test_duplicates_in_the_space_are_no_reason_to_repeat(name: str) -> None:
    space = parse_space({"r": [8, 8, 16], "lora_alpha": ["2r", 16]})
    assert len(configurations(build_sampler(name, space, trials=60), 60)) == 3


@pytest.mark.parametrize("name", DRAWN)
def test_a_space_without_choice_is_one_trial(name: str) -> None:
    assert configurations(build_sampler(name, parse_space({"r": 8}), trials=5), 5) == [{"r": 8}]


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_calls_with_the_same_seed_propose_the_same(name: str) -> None:
    def history(seed: int) -> list[dict[str, object]]:
        sampler = build_sampler(name, RANGES, trials=30, seed=seed)
        proposed = configurations(sampler, 15)
        for trial_id, configuration in enumerate(proposed):
            value = None if trial_id == 3 else abs(math.log(float(str(configuration["learning_rate"])) / 1e-4))
            sampler.tell(trial_id, value)
        return proposed + configurations(sampler, 15)

    assert history(5) == history(5)
    assert history(5) != history(6)


@pytest.mark.parametrize("name", DRAWN)
def test_telling(name: str) -> None:
    sampler = build_sampler(name, RANGES, trials=3)
    sampler.propose(2)
    sampler.tell(0, 1.0)
    sampler.tell(0, 2.0)
    sampler.tell(1, float("nan"))
    with pytest.raises(ValueError, match="trial 2 was not proposed; ids below 2 were"):
        sampler.tell(2, 1.0)


@pytest.mark.parametrize("name", DRAWN)
def test_optuna_knows_each_proposal_with_its_result_or_as_running(name: str) -> None:
    sampler: Any = build_sampler(name, RANGES, trials=3)
    sampler.propose(3)
    sampler.tell(1, 2.0)
    assert [trial.state.name for trial in sampler._build_study().trials] == ["RUNNING", "COMPLETE", "RUNNING"]


@pytest.mark.parametrize("name", DRAWN)
def test_asking_for_nothing_costs_no_study(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = build_sampler(name, RANGES, trials=8)
    sampler.propose(4)
    with monkeypatch.context() as patch:
        patch.setattr(optuna, "create_study", None)
        assert sampler.propose(0) == ()
    sampler.tell(1, 0.5)
    assert len(sampler.propose(1)) == 1


def test_optunas_logging_is_left_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    build_sampler("tpe", LISTS, trials=2).propose(2)
    assert optuna.logging.get_verbosity() == before
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("trials", [None, 0])
def test_the_budget_must_be_given(name: str, trials: int | None) -> None:
    with pytest.raises(InputError, match=r"search\.trials: found .*allowed: an integer >= 1"):
        build_sampler(name, LISTS, trials=trials)
