"""LoRA products of neighbouring slots whose samples have the same lengths: one call for the products of all slots.

What is computed is what :mod:`.slot_stretches` computes slot by slot, product for product; only calls and views are
fewer, which at 64 rows a slot take a third as long as the products. torch multiplies a batch item by item, by the same
BLAS. Nothing promises that, so it is asked for the very shapes whether the bits are the same: for slots that follow
each other without a gap and for others, since torch multiplies them by other calls. Where they are not, the slots take
turns.

Shapes:  C slots · Z rows of each · H rows of one run of each · L rows of one sample of each · K input width
         N output width of one part · r true rank
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from cohort.kernels.packed_linear.slot_stretches import MOST_ROWS_ADDED, Stretch
from cohort.kernels.packed_linear.tables import LoraPart, SlotFactors
from cohort.kernels.packed_linear.term_heights import TermShape

__all__ = ["EvenSlots", "even_backward", "even_forward", "even_slots"]

# Fewer slots gain less than asking takes.
LEAST_SLOTS = 3
_ALIGNED_ENTRIES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class EvenSlots:
    """The slots of a stretch that can be taken together.

    Attributes:
        first, step: First rank row of the first slot, and how many rows later each next slot begins.
        runs: Rows of each run of a slot.
        lengths: Rows of each sample of a slot.
    """

    rows: slice
    count: int
    rank: int
    first: int
    step: int
    scale: float
    runs: tuple[int, ...]
    lengths: tuple[int, ...]

    def by_slot(self, rows_TX: Tensor) -> Tensor:
        """Return the slots' rows [C, Z, X]."""
        rows_CZX: Tensor = rows_TX[self.rows].unflatten(0, (self.count, -1))
        return rows_CZX

    def by_run(self, rows_TX: Tensor) -> Sequence[Tensor]:
        """Return the slots' rows of each run [C, H, X]."""
        return self.by_slot(rows_TX).split_with_sizes(self.runs, 1)

    def by_sample(self, rows_TX: Tensor) -> Sequence[Tensor]:
        """Return the slots' rows of each sample [C, L, X]."""
        return self.by_slot(rows_TX).split_with_sizes(self.lengths, 1)

    def factors(self, part: LoraPart) -> SlotFactors:
        return part.of_slots(self.first, step=self.step, count=self.count, rank=self.rank)

    def have_own_bits(self, part: LoraPart, *, product_width: int, num_threads: int) -> bool:
        """Return whether each slot's products, and sums in its sinks, have the bits that they have one by one."""
        if part.grad_a_RK is not None and part.grad_a_RK.dtype != part.a_RK.dtype:
            return False
        (_, k), n, stride = part.a_RK.shape, part.b_RN.shape[1], part.a_RK.stride(0)
        sinks = (
            (part.a_RK if part.grad_a_RK is None else part.grad_a_RK).stride(0),
            (part.b_RN if part.grad_b_RN is None else part.grad_b_RN).stride(0),
        )
        asked = (k, n, product_width, self.rank, stride, num_threads, self.count)
        return _have_own_bits(*asked, self.run_heights, self.sample_heights, sinks)

    @cached_property
    def run_heights(self) -> tuple[int, ...]:
        """The numbers of rows that runs have."""
        return tuple(sorted({*self.runs}))

    @cached_property
    def sample_heights(self) -> tuple[int, ...]:
        """The numbers of rows that samples have."""
        return tuple(sorted({*self.lengths}))


# by plain numbers, as term_least is
@functools.cache
def _have_own_bits(
    k: int,
    n: int,
    width: int,
    rank: int,
    stride: int,
    num_threads: int,
    count: int,
    runs: tuple[int, ...],
    lengths: tuple[int, ...],
    sinks: tuple[int, int],
) -> bool:
    shape = TermShape(
        in_features=k, out_features=n, product_width=width, rank=rank, factor_stride=stride, num_threads=num_threads
    )
    return _asked(shape, count, runs, lengths, sinks)


def even_slots(stretch: Stretch) -> EvenSlots | None:
    """Return the stretch as slots that can be taken together; None where their samples or scales differ."""
    count, starts = len(stretch.slots), [start for start, _ in stretch.rank_rows]
    own = stretch.slots[0].lengths
    if count < LEAST_SLOTS or max(own) > MOST_ROWS_ADDED or any(each.lengths != own for each in stretch.slots):
        return None
    step = starts[1] - starts[0]
    if step < stretch.rank or starts != [starts[0] + step * place for place in range(count)]:
        return None
    if len({*stretch.scales}) > 1:
        return None
    return EvenSlots(
        rows=stretch.rows,
        count=count,
        rank=stretch.rank,
        first=starts[0],
        step=step,
        scale=stretch.scales[0],
        runs=tuple(stretch.runs[: len(stretch.runs) // count]),
        lengths=own,
    )


def even_forward(y_TN: Tensor, *, x_runs: Sequence[Tensor], part: LoraPart, even: EvenSlots) -> Tensor:
    """Add the terms of one part to ``y`` and return S [C Z, r]."""
    own = even.factors(part)
    s_Sr = y_TN.new_empty(even.rows.stop - even.rows.start, even.rank)
    s_runs = s_Sr.unflatten(0, (even.count, -1)).split_with_sizes(even.runs, 1)
    for x_CHK, s_CHr, y_CHN in zip(x_runs, s_runs, even.by_run(y_TN[:, part.columns]), strict=True):
        torch.bmm(x_CHK, own.a_Kr, out=s_CHr)
        y_CHN.baddbmm_(s_CHr, own.b_rN, alpha=even.scale)
    return s_Sr


def even_backward(
    dy_TN: Tensor,
    *,
    s_Sr: Tensor,
    x_samples: Sequence[Tensor],
    dx_runs: Sequence[Tensor] | None,
    part: LoraPart,
    even: EvenSlots,
) -> None:
    """Add one part's term to dx, and every sample's dA and dB to the sinks, in sample order."""
    own, alpha = even.factors(part), even.scale
    assert own.grad_a_rK is not None, "backward needs sinks"
    assert own.grad_b_rN is not None, "backward needs sinks"
    dy_CZN, s_CZr = even.by_slot(dy_TN[:, part.columns]), s_Sr.unflatten(0, (even.count, -1))
    ds_CZr = torch.empty_like(s_CZr)
    ds_runs = ds_CZr.split_with_sizes(even.runs, 1)
    for dy_CHN, ds_CHr in zip(dy_CZN.split_with_sizes(even.runs, 1), ds_runs, strict=True):
        torch.bmm(dy_CHN, own.b_Nr, out=ds_CHr)
    s_samples, ds_samples = (rows.transpose(1, 2).split_with_sizes(even.lengths, 2) for rows in (s_CZr, ds_CZr))
    dy_samples = dy_CZN.split_with_sizes(even.lengths, 1)
    for s_CrL, ds_CrL, dy_CLN, x_CLK in zip(s_samples, ds_samples, dy_samples, x_samples, strict=True):
        own.grad_b_rN.baddbmm_(s_CrL, dy_CLN, alpha=alpha)
        own.grad_a_rK.baddbmm_(ds_CrL, x_CLK, alpha=alpha)
    if dx_runs is None:
        return
    for dx_CHK, ds_CHr in zip(dx_runs, ds_runs, strict=True):
        dx_CHK.baddbmm_(ds_CHr, own.a_rK, alpha=alpha)


def _asked(
    shape: TermShape, count: int, runs: tuple[int, ...], lengths: tuple[int, ...], sinks: tuple[int, int]
) -> bool:
    generator = torch.Generator().manual_seed(0)
    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        for per_slot in (1, 2):
            rows = {
                height: _Rows.drawn(shape, count, height, per_slot, generator, sinks) for height in {*runs, *lengths}
            }
            if not all(rows[height].forward_and_dx_agree() for height in runs):
                return False
            if not all(rows[height].gradients_agree() for height in lengths):
                return False
    return True


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Drawn operands of one height, with the strides that they have in a pass."""

    x: Tensor
    y: Tensor
    s: Tensor
    a: Tensor
    b: Tensor
    grad_a: Tensor
    grad_b: Tensor

    @classmethod
    def drawn(
        cls,
        shape: TermShape,
        count: int,
        height: int,
        times: int,
        generator: torch.Generator,
        sinks: tuple[int, int],
    ) -> _Rows:
        """Return operands of slots that have ``times`` as many rows: a batch of the first has no gaps."""
        per_slot = times * height

        def rows(width: int, stride: int, per_slot: int, taken: int) -> Tensor:
            offset = _ALIGNED_ENTRIES * int(torch.randint(16, (1,), generator=generator))
            buffer = torch.randn(offset + count * per_slot * stride, generator=generator)
            return buffer.as_strided((count, taken, width), (per_slot * stride, stride, 1), offset)

        k, n, r = shape.in_features, shape.out_features, shape.rank
        return cls(
            x=rows(k, k, per_slot, height),
            y=rows(n, max(shape.product_width, n), per_slot, height),
            s=rows(r, r, per_slot, height),
            a=rows(k, max(shape.factor_stride, k), r, r),
            b=rows(n, max(shape.factor_stride, n), r, r),
            # where they are dense, torch may take another call than for rows in a wider buffer
            grad_a=rows(k, max(sinks[0], k), r, r),
            grad_b=rows(n, max(sinks[1], n), r, r),
        )

    def forward_and_dx_agree(self) -> bool:
        written = ((self.x, self.a.transpose(1, 2)), (self.y, self.b.transpose(1, 2)))
        added = ((self.y, self.s, self.b), (self.x, self.s, self.a))
        return all(_same_written(*operands, like=self.s) for operands in written) and all(
            _same_added(*operands) for operands in added
        )

    def gradients_agree(self) -> bool:
        s_rL = self.s.transpose(1, 2)
        return _same_added(self.grad_b, s_rL, self.y) and _same_added(self.grad_a, s_rL, self.x)


def _same_written(left: Tensor, right: Tensor, *, like: Tensor) -> bool:
    together, apart = _room_of(like), _room_of(like)
    torch.bmm(left, right, out=together)
    for own_left, own_right, own in zip(left, right, apart, strict=True):
        torch.mm(own_left, own_right, out=own)
    return torch.equal(together, apart)


def _same_added(onto: Tensor, left: Tensor, right: Tensor) -> bool:
    together, apart = _room_of(onto), _room_of(onto)
    together.baddbmm_(left, right, alpha=2.0)
    for own, own_left, own_right in zip(apart, left, right, strict=True):
        own.addmm_(own_left, own_right, alpha=2.0)
    return torch.equal(together, apart)


def _room_of(like: Tensor) -> Tensor:
    """Return a copy with the same strides."""
    last = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)) + 1
    return torch.zeros(last).as_strided(like.shape, like.stride()).copy_(like)
