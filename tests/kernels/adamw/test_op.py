from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cohort.core.errors import SegmentError, ShapeError
from cohort.kernels.adamw import SlotUpdate, adamw_step, stage_slots
from cohort.kernels.backend import Backend
from tests.kernels.closeness import relative_error

NUM_ROWS = 14
SLOTS = (
    SlotUpdate(row_start=0, rank=1, learning_rate=1e-2, step=1, max_grad_norm=1.0),
    SlotUpdate(row_start=1, rank=4, learning_rate=3e-4, step=7, weight_decay=0.01, max_grad_norm=1e6, scaled_rate=4.0),
    SlotUpdate(row_start=8, rank=3, learning_rate=1e-3, step=100, weight_decay=0.3, beta1=0.8, beta2=0.95, eps=1e-6),
    SlotUpdate(row_start=5, rank=2, learning_rate=2e-4, step=2, weight_decay=0.1, max_grad_norm=0.1, scaled_rate=0.5),
)  # rows 7 and 11 to 13 belong to none


class _Bank:
    def __init__(self, width: int, *, dtype: torch.dtype = torch.float64, device: str = "cpu") -> None:
        def matrix() -> Tensor:
            return torch.randn(NUM_ROWS, width, dtype=dtype, device=device)

        self.params, self.grads, self.exp_avg = matrix(), matrix(), matrix()
        self.exp_avg_sq = matrix().square()

    def matrices(self) -> tuple[Tensor, ...]:
        return self.params, self.grads, self.exp_avg, self.exp_avg_sq

    def copy(self, dtype: torch.dtype) -> _Bank:
        bank = _Bank(1, dtype=dtype)
        bank.params, bank.grads, bank.exp_avg, bank.exp_avg_sq = (x.cpu().to(dtype).clone() for x in self.matrices())
        return bank

    def step(self, slots: object, **options: object) -> Tensor:
        # B's columns, as LoRA+ scales their rate
        scaled_D = torch.arange(self.params.shape[1], device=self.params.device) >= self.params.shape[1] // 3
        return adamw_step(
            self.params,
            scaled_D=scaled_D,
            grads_RD=self.grads,
            exp_avg_RD=self.exp_avg,
            exp_avg_sq_RD=self.exp_avg_sq,
            slots=slots,  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )

    def step_with_torch(self, slots: tuple[SlotUpdate, ...]) -> list[Tensor]:
        """Do the same with one torch optimizer per slot, A and B apart as PEFT keeps them."""
        norms, width = [], self.params.shape[1]
        for slot in slots:
            rows, norm_limit = slice(slot.row_start, slot.row_start + slot.rank), slot.max_grad_norm
            parts = [(rows, slice(0, width // 3)), (rows, slice(width // 3, width))]
            rates = [slot.learning_rate, slot.learning_rate * slot.scaled_rate]
            weights = [torch.nn.Parameter(self.params[part].clone()) for part in parts]
            for weight, part in zip(weights, parts, strict=True):
                weight.grad = self.grads[part].clone()
            limit = float("inf") if norm_limit is None else norm_limit
            norms.append(torch.nn.utils.clip_grad_norm_(weights, limit))
            optimizer = torch.optim.AdamW(
                [{"params": [weight], "lr": rate} for weight, rate in zip(weights, rates, strict=True)],
                betas=(slot.beta1, slot.beta2),
                eps=slot.eps,
                weight_decay=slot.weight_decay,
                foreach=False,
            )
            for weight, part in zip(weights, parts, strict=True):
                optimizer.state[weight] = {
                    "step": torch.tensor(float(slot.step - 1)),
                    "exp_avg": self.exp_avg[part].clone(),
                    "exp_avg_sq": self.exp_avg_sq[part].clone(),
                }
            optimizer.step()
            for weight, part in zip(weights, parts, strict=True):
                self.params[part] = weight.detach()
                self.exp_avg[part] = optimizer.state[weight]["exp_avg"]
                self.exp_avg_sq[part] = optimizer.state[weight]["exp_avg_sq"]
        return norms


def test_is_clipping_and_adamw_of_torch() -> None:
    bank = _Bank(53)
    other = bank.copy(torch.float64)
    norms, expected = bank.step(SLOTS), other.step_with_torch(SLOTS)
    torch.testing.assert_close(norms, torch.stack(expected), rtol=1e-13, atol=0)
    for mine, theirs in zip(bank.matrices(), other.matrices(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("width", [53, 1001, 70_001])
def test_a_slot_steps_alike_wherever_it_stands(width: int) -> None:
    bank = _Bank(width, dtype=torch.float32)
    slot = SLOTS[1]
    rows = slice(slot.row_start, slot.row_start + slot.rank)
    moved = replace(slot, row_start=9)
    moved_rows = slice(9, 9 + slot.rank)
    other = _Bank(width, dtype=torch.float32)
    for mine, theirs in zip(bank.matrices(), other.matrices(), strict=True):
        theirs[moved_rows] = mine[rows]
    norms, moved_norms = bank.step(SLOTS), other.step([moved])
    assert torch.equal(norms[1], moved_norms[0])
    for mine, theirs in zip(bank.matrices(), other.matrices(), strict=True):
        assert torch.equal(theirs[moved_rows], mine[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_scaled_columns", [False, True])
@pytest.mark.parametrize("width", [53, 1001, 70_001])
def test_an_entry_steps_alike_with_as_many_columns_as_a_process_holds(
    width: int, dtype: torch.dtype, *, has_scaled_columns: bool
) -> None:
    # a stage of a pipeline holds the columns of its layers; its norm is another's, so nothing is clipped here
    slot = SlotUpdate(row_start=1, rank=4, learning_rate=3e-4, step=7, weight_decay=0.01, scaled_rate=4.0)
    whole = _Bank(width, dtype=dtype)
    scaled_D = torch.arange(width) >= width // 3 if has_scaled_columns else None
    held = [slice(0, width // 3), slice(width // 3, width), slice(0, 7), slice(5, 22), slice(width - 1, width)]
    parts = [[matrix[:, columns].clone() for matrix in whole.matrices()] for columns in held]

    def step(matrices: Sequence[Tensor], columns: slice) -> None:
        params, grads, exp_avg, exp_avg_sq = matrices
        own_D = None if scaled_D is None else scaled_D[columns].clone()
        adamw_step(params, grads_RD=grads, exp_avg_RD=exp_avg, exp_avg_sq_RD=exp_avg_sq, slots=[slot], scaled_D=own_D)

    step(whole.matrices(), slice(0, width))
    for columns, part in zip(held, parts, strict=True):
        step(part, columns)
        for mine, theirs in zip(part, whole.matrices(), strict=True):
            assert torch.equal(mine, theirs[:, columns]), columns


def _assert_other_rows_untouched(bank: _Bank, before: _Bank) -> None:
    for mine, original in zip(bank.matrices(), before.matrices(), strict=True):
        for row in (7, 11, 12, 13):
            assert torch.equal(mine[row].cpu(), original[row])


def _assert_poison_stays(device: str, backend: Backend) -> None:
    bank = _Bank(37, dtype=torch.float32, device=device)
    clean = bank.copy(torch.float32)
    clean.params, clean.grads, clean.exp_avg, clean.exp_avg_sq = (x.to(device) for x in clean.matrices())
    bank.grads[2, 5] = torch.inf
    bank.grads[5, 0] = torch.nan
    bank.grads[7] = torch.nan  # a row of no slot
    norms, clean_norms = bank.step(SLOTS, backend=backend), clean.step(SLOTS, backend=backend)
    assert norms.isfinite().tolist() == [True, False, True, False]
    assert torch.equal(norms[[0, 2]], clean_norms[[0, 2]])
    for rows in (slice(0, 1), slice(8, 11)):
        assert torch.equal(bank.params[rows], clean.params[rows])
        assert torch.equal(bank.exp_avg_sq[rows], clean.exp_avg_sq[rows])
    assert not bank.params[5].isfinite().all()  # as torch does: the slot's own failure shows


def test_a_failing_slot_leaves_the_others_alone() -> None:
    _assert_poison_stays("cpu", Backend.REFERENCE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, about the NaN that is the point
def test_triton_a_failing_slot_leaves_the_others_alone(triton_device: str) -> None:
    _assert_poison_stays(triton_device, Backend.TRITON)


@pytest.mark.parametrize("backend", Backend)
def test_compute_copies_and_zeroed_gradients(triton_device: str, backend: Backend) -> None:
    bank = _Bank(29, dtype=torch.float32, device=triton_device)
    before = bank.copy(torch.float32)
    low = torch.float16 if triton_device == "cpu" else torch.bfloat16
    compute = torch.full((NUM_ROWS, 29), 7.0, dtype=low, device=triton_device)
    bank.step(SLOTS, compute_RD=compute, zero_grads=True, backend=backend)
    stepping = [row for slot in SLOTS for row in range(slot.row_start, slot.row_start + slot.rank)]
    assert torch.equal(compute[stepping], bank.params[stepping].to(low))
    assert not bank.grads[stepping].any()
    assert (compute[[7, 11, 12, 13]] == 7).all()
    _assert_other_rows_untouched(bank, before)


@pytest.mark.parametrize("width", [1, 29, 1024, 4500])
def test_triton_is_clipping_and_adamw(triton_device: str, width: int) -> None:
    bank = _Bank(width, dtype=torch.float32, device=triton_device)
    before, exact = bank.copy(torch.float32), bank.copy(torch.float64)
    norms, expected = bank.step(SLOTS, backend=Backend.TRITON), exact.step(SLOTS)
    assert relative_error(norms, expected) < 1e-6
    # of the change: the step itself must be right, not only the sum with a larger weight
    stepped = [row for slot in SLOTS for row in range(slot.row_start, slot.row_start + slot.rank)]
    for mine, theirs, original in zip(bank.matrices(), exact.matrices(), before.matrices(), strict=True):
        torch.testing.assert_close(mine.cpu().double()[stepped], theirs[stepped], rtol=1e-6, atol=1e-6)
        change = (theirs - original)[stepped]
        if change.any():
            # a change near 1e-4 of weights near 1, whose float32 spacing is 1e-7
            assert relative_error(mine.cpu().double()[stepped] - original[stepped], change) < 2e-3
    _assert_other_rows_untouched(bank, before)


def test_triton_staged_slots_are_read_again(triton_device: str) -> None:
    bank = _Bank(40, dtype=torch.float32, device=triton_device)
    exact = bank.copy(torch.float64)
    staged = stage_slots(SLOTS, device=bank.params.device, capacity=NUM_ROWS)
    table = staged.table_AC
    for slots in (SLOTS, SLOTS[2:], (), tuple(replace(slot, step=slot.step + 1) for slot in SLOTS[:2])):
        staged = stage_slots(slots, device=bank.params.device, into=staged)
        assert staged.table_AC is table, "a recorded graph reads this memory"
        norms, expected = bank.step(staged, backend=Backend.TRITON), exact.step(slots)
        assert relative_error(norms, expected) < 1e-6
        torch.testing.assert_close(bank.params.cpu().double(), exact.params, rtol=1e-5, atol=1e-5)
    with pytest.raises(SegmentError, match="table holds 14"):
        stage_slots([replace(SLOTS[0], rank=15)], device=bank.params.device, into=staged)


@pytest.mark.gpu
def test_a_graph_replays_with_other_settings() -> None:
    bank = _Bank(3000, dtype=torch.float32, device="cuda")
    exact = bank.copy(torch.float64)
    staged = stage_slots(SLOTS, device=bank.params.device, capacity=NUM_ROWS)
    bank.step(staged)
    exact.step(SLOTS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norms = bank.step(staged)
    for slots in (SLOTS, SLOTS[1:], tuple(replace(slot, learning_rate=1e-3) for slot in SLOTS)):
        staged = stage_slots(slots, device=bank.params.device, into=staged)
        graph.replay()
        assert relative_error(norms[: len(slots)], exact.step(slots)) < 1e-6
        torch.testing.assert_close(bank.params.cpu().double(), exact.params, rtol=1e-5, atol=1e-5)


def test_wrong_banks_and_slots_are_refused() -> None:
    bank = _Bank(4)
    with pytest.raises(SegmentError, match="shares rows"):
        bank.step([SLOTS[1], replace(SLOTS[1], row_start=4)])
    with pytest.raises(SegmentError, match="ends at row 15"):
        bank.step([replace(SLOTS[1], row_start=11)])
    with pytest.raises(SegmentError, match="step >= 1"):
        replace(SLOTS[0], step=0)
    bank.grads = bank.grads[:, :3]
    with pytest.raises(ShapeError, match="grads is"):
        bank.step(SLOTS)
