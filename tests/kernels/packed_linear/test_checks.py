"""Operands that do not fit are refused in words: on a GPU the kernels would read what lies beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cohort.core.errors import OperandError, SegmentError, ShapeError
from cohort.kernels.backend import Backend, BackendError, triton_interprets
from cohort.kernels.packed_linear import LoraPart, SlotTable, packed_linear
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near

T, K, N, R = 20, 8, 12, 24
SLOTS: dict[str, Any] = {"row_starts": (0, 8), "ranks": (8, 16), "scales": (2.0, 1.0), "dropouts": (0.0, 0.0)}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def transposed(matrix: torch.Tensor) -> torch.Tensor:
    """The same numbers with columns in memory where rows should be, as ``lora_B.T`` has them."""
    return matrix.T.contiguous().T


def call(
    *, x: Any = None, frozen: Any = None, parts: Any = None, segments: SegmentTable | None = None, **others: Any
) -> torch.Tensor:
    factors = {name: others.pop(name) for name in ("a", "b") if name in others}
    part = LoraPart(
        a_RK=factors.get("a", normal(R, K)),
        b_RN=factors.get("b", normal(R, N)),
        **{name: others.pop(name) for name in ("grad_a_RK", "grad_b_RN", "column_start") if name in others},
    )
    return packed_linear(
        normal(T, K) if x is None else x,
        frozen=FrozenLinear(normal(N, K)) if frozen is None else frozen,
        parts=[part] if parts is None else parts,
        slots=SlotTable(**SLOTS),
        segments=segments or SegmentTable.from_samples([12, 8], slots=[0, 1], num_slots=2, num_rows=T),
        **others,
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"x": normal(2, 10, K)}, r"x must be \[T, K\].*found \(2, 10, 8\)"),
        ({"x": normal(T, K + 1)}, "x is 9 wide but the frozen linear takes 8"),
        ({"a": normal(K, R)}, r"A \(8, 24\).*one R"),
        ({"b": normal(N, R)}, r"B \(12, 24\).*lora_B.T.contiguous"),
        ({"a": normal(20, K), "b": normal(20, N)}, "20 rank rows but the slots end at rank row 24"),
        ({"column_start": 1}, "columns 1:13 of a frozen linear with 12"),
        ({"column_start": -1}, "columns -1:11"),
        ({"parts": [LoraPart(a_RK=normal(R, K), b_RN=normal(R, N))] * 2}, "parts before it end at 12"),
        ({"grad_a_RK": normal(R, K + 1), "grad_b_RN": normal(R, N)}, r"the sink of A is \(24, 9\)"),
        ({"row_keys_T": torch.arange(12)}, r"one key for each of 20 rows, found \(12,\)"),
    ],
)
def test_shapes_are_checked(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        call(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"x": normal(T, K, dtype=torch.bfloat16)}, "x is torch.bfloat16 but the frozen linear torch.float32"),
        ({"b": normal(R, N, dtype=torch.bfloat16)}, "B is torch.bfloat16 on cpu but x torch.float32"),
        ({"a": normal(R, K).to("meta")}, "A is torch.float32 on meta but x torch.float32 on cpu"),
        ({"a": transposed(normal(R, K))}, r"A \(24, 8\) has strides \(1, 24\).*contiguous"),
        ({"b": transposed(normal(R, N))}, r"B \(24, 12\) has strides"),
        ({"grad_a_RK": transposed(normal(R, K)), "grad_b_RN": normal(R, N)}, "A's sink .* has strides"),
        ({"grad_a_RK": normal(R, K)}, "give grad_a_RK and grad_b_RN, or neither"),
        ({"row_keys_T": torch.arange(T).numpy()}, "row_keys_T must be a torch.int64 tensor .* ndarray of int64"),
        ({"row_keys_T": torch.arange(T, dtype=torch.int32)}, "found Tensor of torch.int32"),
        ({"frozen": torch.nn.Linear(K, N)}, "frozen is a Linear, not a FrozenProduct; wrap its weight"),
        ({"parts": LoraPart(a_RK=normal(R, K), b_RN=normal(R, N))}, "give a list"),
    ],
)
def test_dtypes_devices_and_strides_are_checked(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        call(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"scales": (2.0,)}, "'scales': 1"),
        ({"ranks": (-1, 16)}, "slot 0 .* rank -1"),
        ({"ranks": (8.0, 16)}, "rank 8.0; both must be integers"),
        ({"row_starts": (-8, 8)}, "begins at rank row -8"),
        ({"row_starts": (0, 4)}, "slots 0 and 1 share rank rows: 0:8 and from 4"),
        ({"dropouts": (1.0, 0.0)}, "slot 0 has dropout 1.0; it must be at least 0 and below 1"),
        ({"dropouts": (0.0, -0.1)}, "slot 1 has dropout -0.1"),
    ],
)
def test_slot_tables_are_checked(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SegmentError, match=words):
        SlotTable(**(SLOTS | wrong))


def test_a_free_slot_may_stand_anywhere() -> None:
    slots = SlotTable(row_starts=(0, 0), ranks=(8, 0), scales=(1.0, 0.0), dropouts=(0.0, 0.0))
    assert slots.end_of_rank_rows == 8


@pytest.mark.parametrize(
    ("lengths", "slots", "words"),
    [
        ([12], [0, 1], "1 lengths but 2 slots"),
        ([-1, 21], [0, 1], "cannot have -1 rows"),
        ([12, 8], [0, 2], "slot 2 but there are slots 0 to 1"),
        ([12, 9], [0, 1], "cover 21 rows but the stream has 20"),
    ],
)
def test_samples_are_checked(lengths: list[int], slots: list[int], words: str) -> None:
    with pytest.raises(SegmentError, match=words):
        SegmentTable.from_samples(lengths, slots=slots, num_slots=2, num_rows=T)


def test_segments_of_another_stream_are_refused() -> None:
    with pytest.raises(SegmentError, match=r"segments cover 19 rows but x has 20.*num_rows=20"):
        call(segments=SegmentTable.from_samples([12, 7], slots=[0, 1], num_slots=2, num_rows=19))
    with pytest.raises(SegmentError, match="segments know 3 slots but the slot table 2"):
        call(segments=SegmentTable.from_samples([12, 8], slots=[0, 1], num_slots=3, num_rows=T))


def test_a_backend_is_no_string() -> None:
    with pytest.raises(BackendError, match=r"found backend 'triton'; allowed: Backend.REFERENCE"):
        call(backend="triton")


def test_the_interpreter_takes_no_bfloat16() -> None:
    if not triton_interprets():
        pytest.skip("Triton compiles here")
    half: dict[str, Any] = {name: normal(R, width, dtype=torch.bfloat16) for name, width in (("a", K), ("b", N))}
    frozen = FrozenLinear(normal(N, K, dtype=torch.bfloat16))
    with pytest.raises(BackendError, match="interpreter multiplies bfloat16"):
        call(x=normal(T, K, dtype=torch.bfloat16), frozen=frozen, backend=Backend.TRITON, **half)


def test_a_transposed_stream_is_read_right(triton_device: str) -> None:
    results = []
    for x in (normal(T, K), transposed(normal(T, K))):
        x = x.to(triton_device).requires_grad_()
        a, b = (normal(R, width).to(triton_device).requires_grad_() for width in (K, N))
        y = call(x=x, a=a, b=b, frozen=FrozenLinear(normal(N, K).to(triton_device)), backend=Backend.TRITON)
        y.backward(transposed(normal(T, N)).to(triton_device))
        results.append([y, x.grad, a.grad, b.grad])
    for found, expected in zip(*reversed(results), strict=True):
        assert found is not None
        assert expected is not None
        assert_near(found, expected)
