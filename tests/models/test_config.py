"""The decoder's record: sizes that contradict each other are refused, and each layer has its rule of attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.kernels.gated_activation import Activation
from cohort.models.config import AttentionRule, DecoderConfig
from cohort.models.config_file import read_config


@pytest.fixture
def config(checkpoint: Path) -> DecoderConfig:
    return read_config(checkpoint)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"head_dim": 7}, "head_dim 7 needs up to 3.5 rotary frequencies"),
        ({"windows": (None,)}, "1 windows for 2 layers"),
    ],
)
def test_contradictions_are_refused(config: DecoderConfig, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(config, **change)


def test_each_layer_has_its_rule(config: DecoderConfig) -> None:
    mixed = replace(config, windows=(None, 20), attention_cap=50.0)
    assert mixed.attention_rule(0) == AttentionRule(cap=50.0)
    assert mixed.attention_rule(1) == AttentionRule(window=20, cap=50.0)
    assert AttentionRule(window=20).suits_kernels
    assert not AttentionRule(scale=0.1).suits_kernels
    assert not AttentionRule(cap=50.0).suits_kernels


def test_what_runs_in_plain_torch_is_named(config: DecoderConfig) -> None:
    assert config.slow_paths == ()
    slow = replace(config, attention_cap=50.0, activation=Activation.GELU_TANH, logit_cap=30.0)
    assert [path.split(",")[0] for path in slow.slow_paths] == [
        "attention", "the activation gelu_tanh", "the cap of the logits at 30",
    ]  # fmt: skip
