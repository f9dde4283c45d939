"""Fresh weights: PEFT's distribution, drawn per trial and module, so that nothing else can change them."""

from __future__ import annotations

import math

import pytest
import torch

from cohort.adapters import initialization
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.seeds import derive_seed

SPEC = AdapterSpec(r=6, lora_alpha=12)
LINEARS = {"a.q_proj": (64, 8), "a.v_proj": (16, 4)}


def test_a_is_uniform_within_peft_s_bound_and_b_is_zero() -> None:
    layout = AdapterLayout(LINEARS)
    rows = initial_weights(layout, SPEC, seed=1)
    assert rows.shape == (6, layout.width)
    for name, columns in layout.columns.items():
        bound = LINEARS[name][0] ** -0.5
        assert 0.8 * bound < rows[:, columns.a].abs().max() <= bound
        assert not rows[:, columns.b].any()


def test_a_module_s_draw_depends_on_seed_and_name_alone() -> None:
    both, alone = AdapterLayout(LINEARS), AdapterLayout({"a.v_proj": (16, 4)})
    expected = initial_weights(alone, SPEC, seed=1)[:, alone.columns["a.v_proj"].a]
    assert torch.equal(initial_weights(both, SPEC, seed=1)[:, both.columns["a.v_proj"].a], expected)
    assert not torch.equal(initial_weights(both, SPEC, seed=2)[:, both.columns["a.v_proj"].a], expected)
    in_float64 = initial_weights(alone, SPEC, seed=1, dtype=torch.float64)[:, alone.columns["a.v_proj"].a]
    assert torch.equal(in_float64, expected.double())


@pytest.mark.parametrize("r", [1, 8, 33])
def test_a_factor_has_the_numbers_of_a_tensor_of_its_own(r: int) -> None:
    layout = AdapterLayout({"a": (4096, 7), "b": (3, 5), "c": (16, 4)})
    spec = AdapterSpec(r=r, lora_alpha=1.0, rank_pattern=(("b", r + 1),))
    rows = initial_weights(layout, spec, seed=3)
    for name, (in_features, _) in layout.linears.items():
        rank, bound = spec.rank_of(name), 1.0 / math.sqrt(in_features)
        generator = torch.Generator().manual_seed(derive_seed(3, "lora_A", name))
        drawn = torch.empty(rank, in_features).uniform_(-bound, bound, generator=generator)
        assert torch.equal(rows[:rank, layout.columns[name].a], drawn)
        assert not rows[rank:, layout.columns[name].a].any()


@pytest.mark.parametrize("init", ["true", "gaussian"])
def test_threads_draw_the_bits_that_one_draws(monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    layout = AdapterLayout({f"layers.{index}.mlp": (64 + 16 * index, 32) for index in range(9)})
    spec = AdapterSpec(r=8, lora_alpha=16.0, init_lora_weights=init)
    alone = initial_weights(layout, spec, seed=5)
    monkeypatch.setattr(initialization, "LEAST_SHARED", 0)
    for _ in range(5):
        assert torch.equal(initial_weights(layout, spec, seed=5), alone)
