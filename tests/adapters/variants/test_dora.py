"""DoRA's magnitudes against the plain formula: forward and every gradient, with dropout, bias and siblings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LinearPart, PackedLinear
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.dora import Magnitudes
from cohort.kernels.dropout import dropout_rows, row_keys
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

K, WIDTHS = 13, {"l.q_proj": 9, "l.k_proj": 5, "l.v_proj": 5}
LAYOUT = AdapterLayout({name: (K, WIDTHS[name]) for name in ("l.q_proj", "l.v_proj")})
SPECS = (
    AdapterSpec(r=3, lora_alpha=5, use_dora=True),
    AdapterSpec(r=20, lora_alpha=3, use_dora=True, lora_dropout=0.4),
    AdapterSpec(r=2, lora_alpha=4, lora_dropout=0.3),
    AdapterSpec(r=4, lora_alpha=4, use_dora=True, lora_dropout=0.2, rank_pattern=(("v_proj", 2),)),
)
LENGTHS, SLOTS = [4, 1, 7, 5, 6, 3], [0, 0, 1, 2, 3, 3]


def states() -> list[Tensor]:
    torch.manual_seed(0)
    found = []
    for spec in SPECS:
        weights = torch.zeros(spec.num_rows, LAYOUT.width, dtype=torch.float64)
        for name, columns in LAYOUT.columns.items():
            weights[: spec.rank_of(name), columns.a] = torch.randn(spec.rank_of(name), K, dtype=torch.float64)
            weights[: spec.rank_of(name), columns.b] = torch.randn(
                spec.rank_of(name), WIDTHS[name], dtype=torch.float64
            )
            if spec.use_dora:
                weights[spec.magnitude_row, columns.b] = torch.rand(WIDTHS[name], dtype=torch.float64) + 1
        found.append(weights)
    return found


def expected(x: Tensor, weight: Tensor, bias: Tensor | None, weights: list[Tensor], keys: Tensor | None) -> Tensor:
    y = torch.nn.functional.linear(x, weight, bias)
    outputs, start, bank_keys = [], 0, AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16)._parts
    for length, slot in zip(LENGTHS, SLOTS, strict=True):
        rows, spec, own, first = slice(start, start + length), SPECS[slot], [], 0
        for name, width in WIDTHS.items():
            columns, out = slice(first, first + width), y[rows, first : first + width]
            first += width
            if name in LAYOUT.linears:
                r, places = spec.rank_of(name), LAYOUT.columns[name]
                a, b = weights[slot][:r, places.a], weights[slot][:r, places.b].T
                dropped = x[rows]
                if keys is not None:
                    key, p = bank_keys[name].module_key, spec.lora_dropout
                    dropped = dropout_rows(dropped, keys[rows], module_key=key, probability=p)
                delta = spec.scale_of(name) * b @ a
                gain = 1.0
                if spec.use_dora:
                    norm = (weight[columns] + delta).norm(dim=1).detach()
                    gain = weights[slot][spec.magnitude_row, places.b] / norm
                out = out + (gain - 1) * (dropped @ weight[columns].T) + gain * (dropped @ delta.T)
            own.append(out)
        outputs.append(torch.cat(own, dim=1))
        start += length
    return torch.cat([*outputs, y[start:]])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("drops", [False, True])
# as a GPU computes them, where bits may follow from the pass
@pytest.mark.parametrize("is_free", [False, True])
def test_outputs_and_gradients_are_the_formula_s(
    monkeypatch: pytest.MonkeyPatch, *, with_bias: bool, drops: bool, is_free: bool
) -> None:
    if is_free:
        monkeypatch.setattr(Magnitudes, "_is_free", lambda *_, **__: True)
    weight = torch.randn(sum(WIDTHS.values()), K, dtype=torch.float64)
    bias = 30 * torch.randn(len(weight), dtype=torch.float64) if with_bias else None
    x = torch.randn(48, K, dtype=torch.float64)
    weights = [state.requires_grad_() for state in states()]
    keys = None
    if drops:
        own = [torch.from_numpy(row_keys(n, trial_seed=1, step=2, sample_id=i)) for i, n in enumerate(LENGTHS)]
        keys = torch.cat([*own, torch.zeros(48 - sum(LENGTHS), dtype=torch.int64)])
    reference_x = x.clone().requires_grad_()
    y = expected(reference_x, weight, bias, weights, keys)
    dy = torch.randn_like(y)
    y.backward(dy)

    bank = AdapterBank(LAYOUT, num_slots=5, num_rank_rows=160, dtype=torch.float64)
    slots = [bank.insert(s, AdapterState(weights=w.detach())) for s, w in zip(SPECS, weights, strict=True)]
    linear = PackedLinear(
        FrozenLinear(weight, bias), parts=tuple(LinearPart(name=n, out_features=w) for n, w in WIDTHS.items())
    )
    segments = SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=5, num_rows=48)
    own_x = x.clone().requires_grad_()
    found = linear(own_x, bank.context(segments, row_keys_T=keys))
    torch.testing.assert_close(found, y, rtol=1e-9, atol=1e-9)
    found.backward(dy)
    torch.testing.assert_close(own_x.grad, reference_x.grad, rtol=1e-9, atol=1e-9)
    bank.before_update(slots)
    for slot, reference in zip(slots, weights, strict=True):
        assert reference.grad is not None
        torch.testing.assert_close(bank.grads_RD[bank.rank_rows(slot)], reference.grad, rtol=1e-8, atol=1e-9)


def test_norms_follow_the_weights() -> None:
    spec = SPECS[0]
    bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=32, dtype=torch.float64)
    slot = bank.insert(spec, AdapterState(weights=states()[0]))
    linear = PackedLinear(
        FrozenLinear(torch.randn(19, K, dtype=torch.float64)),
        parts=tuple(LinearPart(name=n, out_features=w) for n, w in WIDTHS.items()),
    )
    x, segments = (
        torch.randn(32, K, dtype=torch.float64),
        SegmentTable.from_samples([32], slots=[0], num_slots=1, num_rows=32),
    )
    before = linear(x, bank.context(segments))
    bank.weights_RD[bank.rank_rows(slot)] *= 1.5
    bank.after_update([slot])
    assert not torch.allclose(linear(x, bank.context(segments)), before)
    bank.remove(slot)
    assert not bank.has_magnitudes


@torch.no_grad()
def test_a_bank_that_does_not_train_gives_the_same_outputs() -> None:
    """The server's bank has no gradients to add to."""
    linear = PackedLinear(
        FrozenLinear(torch.randn(sum(WIDTHS.values()), K, dtype=torch.float64)),
        parts=tuple(LinearPart(name=n, out_features=w) for n, w in WIDTHS.items()),
    )
    x, segments = (
        torch.randn(48, K, dtype=torch.float64),
        SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=5, num_rows=48),
    )
    found = []
    for trains in (True, False):
        bank = AdapterBank(LAYOUT, num_slots=5, num_rank_rows=160, dtype=torch.float64, trains=trains)
        for spec, weights in zip(SPECS, states(), strict=True):
            bank.insert(spec, AdapterState(weights=weights))
        found.append(linear(x, bank.context(segments)))
    assert torch.equal(found[0], found[1])
