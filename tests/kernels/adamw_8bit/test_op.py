"""8-bit AdamW: AdamW but for the rounding of its moments, which is the nearest value of each block's map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.kernels.adamw.slot_update import StagedSlots, stage_slots
from cohort.kernels.adamw_8bit import BLOCK, BlockMoment, adamw_8bit_step
from cohort.kernels.adamw_8bit.reference import read_moment
from cohort.kernels.backend import Backend
from cohort.kernels.dynamic_map import dynamic_map

NUM_ROWS = 14
SLOTS = (
    SlotUpdate(row_start=0, rank=1, learning_rate=1e-2, step=1, max_grad_norm=1.0),
    SlotUpdate(row_start=1, rank=4, learning_rate=3e-4, step=7, weight_decay=0.01, max_grad_norm=1e6, scaled_rate=4.0),
    SlotUpdate(row_start=8, rank=3, learning_rate=1e-3, step=100, weight_decay=0.3, beta1=0.8, beta2=0.95, eps=1e-6),
    SlotUpdate(row_start=5, rank=2, learning_rate=2e-4, step=2, weight_decay=0.1, max_grad_norm=0.1, scaled_rate=0.5),
)  # rows 7 and 11 to 13 belong to none


class Bank:
    def __init__(self, width: int, *, device: str = "cpu") -> None:
        num_blocks = -(-width // BLOCK)

        def moment(size: float) -> BlockMoment:
            codes = torch.randint(0, 256, (NUM_ROWS, width), dtype=torch.uint8)
            scales = torch.rand(NUM_ROWS, num_blocks) * size
            return BlockMoment(codes_RD=codes.to(device), scales_RB=scales.to(device))

        self.params, self.grads = (torch.randn(NUM_ROWS, width).to(device) for _ in range(2))
        # a mean far above the root of the squares, which training never has, would give endless steps
        self.mean, self.square = moment(1e-3), moment(1.0)

    def tensors(self) -> tuple[Tensor, ...]:
        moments = (self.mean.codes_RD, self.mean.scales_RB, self.square.codes_RD, self.square.scales_RB)
        return (self.params, self.grads, *moments)

    def copy(self, device: str = "cpu") -> Bank:
        bank = Bank(1)
        params, grads, *moments = (x.clone().to(device) for x in self.tensors())
        bank.params, bank.grads = params, grads
        bank.mean = BlockMoment(codes_RD=moments[0], scales_RB=moments[1])
        bank.square = BlockMoment(codes_RD=moments[2], scales_RB=moments[3])
        return bank

    def moments(self) -> tuple[Tensor, Tensor]:
        return (
            read_moment(self.mean.codes_RD, self.mean.scales_RB, signed=True),
            read_moment(self.square.codes_RD, self.square.scales_RB, signed=False),
        )

    def step(self, slots: tuple[SlotUpdate, ...] | StagedSlots, **options: object) -> Tensor:
        scaled_D = torch.arange(self.params.shape[1], device=self.params.device) >= self.params.shape[1] // 3
        return adamw_8bit_step(
            self.params,
            scaled_D=scaled_D,
            grads_RD=self.grads,
            exp_avg=self.mean,
            exp_avg_sq=self.square,
            slots=slots,
            **options,  # type: ignore[arg-type]
        )


def nearest(x: Tensor, *, signed: bool) -> Tensor:
    """Round a moment by blocks to the map, slowly."""
    values, found = dynamic_map(signed=signed), x.clone()
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], BLOCK):
            block = x[row, start : start + BLOCK]
            largest = block.abs().max()
            if largest > 0:
                places = (block[:, None] / largest - values[None]).abs().argmin(dim=1)
                places = places if signed else torch.where(block > 0, places.clamp(min=1), places)
                found[row, start : start + BLOCK] = values[places] * largest
    return found


@pytest.mark.parametrize("width", [1, 53, 256, 700])
def test_is_adamw_with_moments_rounded_by_blocks(width: int) -> None:
    bank = Bank(width)
    mean, square = bank.moments()
    params, grads = bank.params.clone(), bank.grads.clone()
    scaled_D = torch.arange(width) >= width // 3
    expected_norms = adamw_step(
        params, grads_RD=grads, exp_avg_RD=mean, exp_avg_sq_RD=square, slots=SLOTS, scaled_D=scaled_D
    )
    norms = bank.step(SLOTS)
    torch.testing.assert_close(norms, expected_norms, rtol=1e-6, atol=0)
    # the same operations in float32, in another order of rows
    torch.testing.assert_close(bank.params, params, rtol=1e-5, atol=1e-6)
    found = bank.moments()
    stepped = [row for slot in SLOTS for row in range(slot.row_start, slot.row_start + slot.rank)]
    for own, exact, signed in zip(found, (mean, square), (True, False), strict=True):
        expected = nearest(exact[stepped], signed=signed)
        # where two values are as near, rounding decides
        assert ((own[stepped] - expected).abs() > 1e-6 * expected.abs() + 1e-12).float().mean() < 0.01


@pytest.mark.parametrize("width", [53, 1001, 70_001])
def test_a_slot_steps_alike_wherever_it_stands(width: int) -> None:
    bank, other = Bank(width), Bank(width)
    slot = SLOTS[1]
    rows, moved_rows = slice(slot.row_start, slot.row_start + slot.rank), slice(9, 9 + slot.rank)
    for mine, theirs in zip(bank.tensors(), other.tensors(), strict=True):
        theirs[moved_rows] = mine[rows]
    norms, moved_norms = bank.step(SLOTS), other.step((replace(slot, row_start=9),))
    assert torch.equal(norms[1], moved_norms[0])
    for mine, theirs in zip(bank.tensors(), other.tensors(), strict=True):
        assert torch.equal(theirs[moved_rows], mine[rows])


def test_zeros_mean_zero_and_no_second_moment_becomes_zero() -> None:
    bank = Bank(512)
    for tensor in bank.tensors()[2:]:
        tensor.zero_()
    assert all(moment.eq(0).all() for moment in bank.moments())
    bank.grads[:, ::2] = torch.rand(NUM_ROWS, 256) * 1e-6 + 1e-8
    bank.grads[:, 1] = 1.0
    bank.step((replace(SLOTS[1], max_grad_norm=None),))
    square = bank.moments()[1][SLOTS[1].row_start]
    assert (square > 0).all()
    assert bank.params.isfinite().all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poison_stays_in_its_slot(poison: float) -> None:
    bank = Bank(300)
    clean = bank.copy()
    bank.grads[2, 5] = poison
    bank.step(SLOTS)
    clean.step(SLOTS)
    for mine, theirs in zip(bank.tensors(), clean.tensors(), strict=True):
        for row in (0, *range(5, NUM_ROWS)):
            assert torch.equal(mine[row], theirs[row])
    assert not bank.params[2].isfinite().all()


@pytest.mark.parametrize("width", [1, 53, 700, 2049])
def test_triton_is_the_reference(triton_device: str, width: int) -> None:
    exact = Bank(width)
    bank = exact.copy(triton_device)
    compute = torch.zeros(NUM_ROWS, width, dtype=torch.float16, device=triton_device)
    exact_norms = exact.step(SLOTS, zero_grads=True)
    norms = bank.step(SLOTS, backend=Backend.TRITON, compute_RD=compute, zero_grads=True)
    torch.testing.assert_close(norms.cpu(), exact_norms, rtol=1e-5, atol=0)
    # sums in another order, and steps of 1 / sqrt(v) where v is small
    torch.testing.assert_close(bank.params.cpu(), exact.params, rtol=1e-4, atol=1e-5)
    assert torch.equal(bank.grads.cpu(), exact.grads)
    stepped = [row for slot in SLOTS for row in range(slot.row_start, slot.row_start + slot.rank)]
    torch.testing.assert_close(compute[stepped].cpu(), bank.params[stepped].cpu().half())
    for place in (2, 4):
        # codes on the middle between two values may fall on either side
        assert (bank.tensors()[place].cpu() != exact.tensors()[place]).float().mean() < 0.01
        torch.testing.assert_close(bank.tensors()[place + 1].cpu(), exact.tensors()[place + 1], rtol=1e-5, atol=0)


@pytest.mark.gpu
def test_a_recorded_step_is_the_launched_one_whatever_the_slots() -> None:
    """A graph reads each step's settings from the memory it was recorded with; the bits are those of a launch."""
    recorded = Bank(3000).copy("cuda")
    launched = recorded.copy("cuda")
    staged = stage_slots(SLOTS, device=recorded.params.device, capacity=NUM_ROWS)
    for bank in (recorded, launched):
        bank.step(staged)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.step(staged)
    for slots in (SLOTS, SLOTS[1:], tuple(replace(slot, learning_rate=1e-3, step=slot.step + 1) for slot in SLOTS)):
        staged = stage_slots(slots, device=recorded.params.device, into=staged)
        graph.replay()
        launched.step(slots)
        for mine, theirs in zip(recorded.tensors(), launched.tensors(), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.gpu
def test_on_a_gpu_too_poison_stays_in_its_slot() -> None:
    bank = Bank(3000).copy("cuda")
    clean = bank.copy("cuda")
    bank.grads[2, 5] = torch.nan
    bank.step(SLOTS)
    clean.step(SLOTS)
    others = [0, *range(5, NUM_ROWS)]
    for mine, theirs in zip(bank.tensors(), clean.tensors(), strict=True):
        assert torch.equal(mine[others], theirs[others])
    assert not bank.params[2].isfinite().all()


def test_matrices_that_do_not_fit_are_refused() -> None:
    bank = Bank(300)
    bank.mean = BlockMoment(codes_RD=bank.mean.codes_RD, scales_RB=bank.mean.scales_RB[:, :1])
    with pytest.raises(ShapeError, match=r"exp_avg scales is \(14, 1\)"):
        bank.step(SLOTS)
