"""The feed-forward block: its activation is the family's, and only SiLU may be fused."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cohort.adapters.linear import LinearPart, LoraContext, PackedLinear
from cohort.adapters.mlp import PackedMlp
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.gated_activation import Activation
from cohort.kernels.packed_linear import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

D, WIDTH = 6, 10
GATE_UP, DOWN = torch.randn(2 * WIDTH, D, dtype=torch.float64), torch.randn(D, WIDTH, dtype=torch.float64)


def block(activation: Activation) -> PackedMlp:
    names = (LinearPart(name="gate", out_features=WIDTH), LinearPart(name="up", out_features=WIDTH))
    down = PackedLinear(FrozenLinear(DOWN), parts=(LinearPart(name="down", out_features=D),))
    return PackedMlp(PackedLinear(FrozenLinear(GATE_UP), parts=names), down, activation=activation)


def context(dtype: torch.dtype = torch.float64) -> LoraContext:
    def part(inputs: int, outputs: int) -> LoraPart:
        return LoraPart(a_RK=torch.ones(2, inputs, dtype=dtype), b_RN=torch.full((2, outputs), 0.1, dtype=dtype))

    factors = {"gate": part(D, WIDTH), "up": part(D, WIDTH), "down": part(WIDTH, D)}
    slots = SlotTable(row_starts=(0,), ranks=(2,), scales=(0.5,), dropouts=(0.0,))
    segments = SegmentTable.from_samples([32], slots=[0], num_slots=1, num_rows=48)
    return LoraContext(factors=factors, slots=slots, segments=segments)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("activation", Activation)
def test_the_block_is_down_of_the_gated_activation(activation: Activation, adapted: bool) -> None:
    x, lora = torch.randn(48, D, dtype=torch.float64), context()

    def product(x: torch.Tensor, weight: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
        y = x @ weight.T
        if adapted:
            terms = [0.5 * (x[:32] @ lora.factors[name].a_RK.T) @ lora.factors[name].b_RN for name in names]
            y[:32] += torch.cat(terms, dim=1)
        return y

    gate, up = product(x, GATE_UP, ("gate", "up")).chunk(2, dim=1)
    silu = activation is Activation.SILU
    acted = F.silu(gate) if silu else F.gelu(gate, approximate="tanh" if activation is Activation.GELU_TANH else "none")
    torch.testing.assert_close(block(activation)(x, lora if adapted else None), product(acted * up, DOWN, ("down",)))


def test_only_silu_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.adapters.mlp.choose_backend", lambda x: Backend.TRITON)
    x = torch.empty(0, D, dtype=torch.float16)
    assert block(Activation.SILU).is_fused(x, context(torch.float16))
    assert not block(Activation.GELU).is_fused(x, context(torch.float16))
    with use_backend(Backend.REFERENCE):
        monkeypatch.undo()
        assert not block(Activation.SILU).is_fused(x, context(torch.float16))
