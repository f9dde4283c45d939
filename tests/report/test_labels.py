"""Numbers, settings and facts as short text."""

from __future__ import annotations

import pytest

from cohort.report.labels import (
    is_number,
    model_label,
    number_label,
    percent_label,
    setting_label,
    shortened,
    value_label,
)
from cohort.runs.records import JsonValue


@pytest.mark.parametrize(
    ("value", "label"), [(1e-5, "1e-5"), (2e-4, "2e-4"), (0.25, "0.25"), (1536.0, "1.54e3"), (0.0, "0")]
)
def test_numbers_are_as_people_write_rates(value: float, label: str) -> None:
    assert number_label(value) == label


def test_a_loss_keeps_four_digits() -> None:
    assert number_label(1.23456, digits=4) == "1.235"
    assert number_label(1e-5, digits=4) == "1e-5"


@pytest.mark.parametrize(
    ("value", "label"), [(True, "true"), (8, "8"), (2e-4, "2e-4"), ("cosine", "cosine"), (None, "null")]
)
def test_a_setting_is_a_tick_of_an_axis(value: JsonValue, label: str) -> None:
    assert setting_label(value) == label


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (True, "true"),
        (12345, "12,345"),
        ({"torch": "2.13", "threads": 2}, "torch 2.13, threads 2"),
        (["a", "b"], "a, b"),
        ([f"layer{n}" for n in range(9)], "layer0, layer1, layer2, layer3, layer4, layer5 and 3 more"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_a_fact_is_text_of_a_table(value: JsonValue, label: str) -> None:
    assert value_label(value) == label


def test_a_share_that_is_not_known_is_a_dash() -> None:
    assert (percent_label(0.125), percent_label(None)) == ("12.5 %", "–")


def test_a_switch_is_no_number() -> None:
    assert [is_number(value) for value in (1, 0.5, True, "1", None)] == [True, True, False, False, False]


def test_long_settings_are_shortened_in_the_middle() -> None:
    label = setting_label(["q_proj", "k_proj", "v_proj", "o_proj"])
    assert label == "q_proj, k_proj, v_proj, o_proj"
    assert shortened(label, most=12) == "q_proj…_proj"
    assert shortened("cosine", most=6) == "cosine"
    assert len(shortened("constant_with_warmup", most=9)) == 9


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("/home/ada/models/stories/hf", "stories/hf"),
        ("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/0a1b", "Qwen/Qwen3-0.6B"),
    ],
)
def test_a_local_model_has_the_name_that_tells_it_from_others(name: str, label: str) -> None:
    assert model_label(name) == label
