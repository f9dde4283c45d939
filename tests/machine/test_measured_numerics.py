"""Steps of both numerics are timed in turns on a few layers, and kept; what does not fit ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.machine import measured_numerics
from cohort.machine.exact_steps import keep_exact_steps, own_exact_steps
from cohort.machine.measured_numerics import MeasuredPack, measure_exact_steps
from cohort.models.config_file import read_config
from tests.training.small_models import save_llama

PACK = MeasuredPack(num_trials=2, batch_size=1, length=5, warmups=1)


def test_steps_are_timed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "caches"))
    save_llama(tmp_path, num_layers=2)
    config, said = read_config(tmp_path), list[str]()
    steps = measure_exact_steps(config, device=torch.device("cpu"), say=said.append, packs=(PACK,))
    assert steps == own_exact_steps("cpu")
    assert [(step.tokens, step.widths.hidden_size) for step in steps] == [(10, config.hidden_size)]
    assert steps[0].ratio > 0
    assert said == ["timing steps of 10 tokens in exact and in fast numerics"]

    (launched,) = measure_exact_steps(
        config, device=torch.device("cpu"), say=said.append, packs=(replace(PACK, launched=True),)
    )
    assert launched.launched
    assert said.pop() == "timing steps of 10 tokens, launched kernel by kernel, in exact and in fast numerics"
    keep_exact_steps(steps)

    def too_large(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(measured_numerics, "_step_seconds", too_large)
    assert measure_exact_steps(config, device=torch.device("cpu"), say=said.append, packs=(PACK,)) == ()
    assert said[-1] == "a larger step does not fit this GPU"
    # what was measured before is still there
    assert own_exact_steps("cpu") == steps
