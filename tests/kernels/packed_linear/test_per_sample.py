"""The CPU path against the definition, and sums that do not depend on how samples are split into passes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cohort.kernels.packed_linear.per_sample import per_sample_backward, per_sample_forward
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.packed_linear.cases import make_case, sink_of


def run(
    x: Tensor, dy: Tensor, weight: Tensor, parts: list[LoraPart], slots: SlotTable, segments: SegmentTable, keys: Tensor
) -> tuple[Tensor, Tensor]:
    frozen = FrozenLinear(weight)
    y, kept = per_sample_forward(x, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=keys)
    dx = per_sample_backward(
        dy, x_TK=x, kept=kept, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=keys
    )
    assert dx is not None
    return y, dx


def test_equals_the_definition() -> None:
    case = make_case(
        "cpu", lengths=[9, 0, 7], ranks=[3, 4, 5], widths=(24, 8), dropouts=[0.3, 0.0, 0.1], dtype=torch.float64
    )
    assert case.row_keys is not None
    y, dx = run(case.x, case.dy, case.weight, case.parts, case.slots, case.segments, case.row_keys)
    expected = case.reference()
    found = {"y": y, "dx": dx}
    for index, part in enumerate(case.parts):
        found |= {f"da{index}": sink_of(part.grad_a_RK), f"db{index}": sink_of(part.grad_b_RN)}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        # the sinks are float32
        digits = 1e-12 if tensor.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(tensor.double(), expected[name], rtol=digits, atol=digits)


def test_samples_in_one_pass_or_in_two_leave_the_same_bits_in_the_sinks() -> None:
    case = make_case("cpu", lengths=[48], ranks=[5], extra=16)
    keys = torch.zeros(64, dtype=torch.int64)

    def sinks(splits: list[list[int]]) -> list[Tensor]:
        parts = [
            replace(part, grad_a_RK=torch.zeros_like(part.a_RK), grad_b_RN=torch.zeros_like(part.b_RN))
            for part in case.parts
        ]
        start = 0
        for lengths in splits:
            stop = start + sum(lengths)
            rows = [*range(start, stop), *range(48, 64)]
            table = SegmentTable.from_samples(lengths, slots=[0] * len(lengths), num_slots=1, num_rows=len(rows))
            run(case.x[rows], case.dy[rows], case.weight, parts, case.slots, table, keys[: len(rows)])
            start = stop
        return [sink_of(sink) for part in parts for sink in (part.grad_a_RK, part.grad_b_RN)]

    together, apart = sinks([[16, 16, 16]]), sinks([[16], [16, 16]])
    assert all(gradient.abs().max() > 0 for gradient in together)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
