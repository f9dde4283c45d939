"""The bank: slots come and go, rows move, nothing of an adapter changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.adapters.adapter_state import AdapterState, Moment
from cohort.adapters.bank import AdapterBank, BankFullError
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks

LAYOUT = AdapterLayout({"a": (3, 5), "b": (4, 2)})
MOMENTS = (Moment("mean"), Moment("square", dtype=torch.float64))


def state_of(r: int, *, fill: float) -> AdapterState:
    shape = (r, LAYOUT.width)
    return AdapterState(
        weights=torch.full(shape, fill),
        moments={"mean": torch.full(shape, fill + 0.25), "square": torch.full(shape, fill + 0.5).double()},
    )


def test_layout_gives_each_factor_its_own_columns() -> None:
    columns = LAYOUT.columns
    covered = [
        index for part in columns.values() for piece in (part.a, part.b) for index in range(piece.start, piece.stop)
    ]
    assert covered == list(range(LAYOUT.width)) == list(range(14))


def test_a_full_bank_says_what_is_in_use() -> None:
    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=32, moments=MOMENTS)
    bank.insert(AdapterSpec(r=17, lora_alpha=1), state_of(17, fill=1))
    with pytest.raises(BankFullError, match="rank 3: 1 of 2 slots and 17 of 32 rank rows"):
        bank.insert(AdapterSpec(r=3, lora_alpha=1), state_of(3, fill=1))
    assert not bank.fits(AdapterSpec(r=1, lora_alpha=1))


def test_an_adapter_that_cannot_be_put_in_leaves_its_slot_free(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16, moments=MOMENTS)

    def full(slot: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(bank, "refresh", full)
        with pytest.raises(torch.OutOfMemoryError):
            bank.insert(AdapterSpec(r=5, lora_alpha=1), state_of(5, fill=1))
    assert bank.occupied == ()
    assert not bank.weights_RD.any()
    assert bank.insert(AdapterSpec(r=5, lora_alpha=1), state_of(5, fill=1)) == 0


def test_removing_leaves_nothing_behind() -> None:
    bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16, moments=MOMENTS)
    slot = bank.insert(AdapterSpec(r=5, lora_alpha=1), state_of(5, fill=float("nan")))
    bank.grads_RD.fill_(float("nan"))
    bank.remove(slot)
    for buffer in (bank.weights_RD, bank.grads_RD, *bank.moments_RD.values()):
        assert not buffer.any()


def test_compute_copy_follows_the_masters() -> None:
    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=48, compute_dtype=torch.bfloat16, moments=MOMENTS)
    slot = bank.insert(AdapterSpec(r=2, lora_alpha=1), state_of(2, fill=1.0))
    assert bank.compute_RD.dtype is torch.bfloat16
    assert torch.equal(bank.compute_RD[bank.rank_rows(slot)].float(), torch.ones(2, LAYOUT.width))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 5)), max_size=30))
def test_adapters_keep_their_rows_whatever_comes_and_goes(actions: list[tuple[bool, int, int]]) -> None:
    bank = AdapterBank(LAYOUT, num_slots=6, num_rank_rows=128, moments=MOMENTS)
    inside: dict[int, AdapterState] = {}
    for number, (adds, r, which) in enumerate(actions):
        if adds and bank.fits(AdapterSpec(r=r, lora_alpha=1)):
            state = state_of(r, fill=float(number + 1))
            inside[bank.insert(AdapterSpec(r=r, lora_alpha=1), state)] = state
        elif not adds and inside:
            slot = sorted(inside)[which % len(inside)]
            bank.remove(slot)
            del inside[slot]
        assert bank.occupied == tuple(sorted(inside))
        for slot, expected in inside.items():
            found = bank.read(slot)
            assert found.tensors.keys() == expected.tensors.keys()
            assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())
    occupied_rows = {row for slot in inside for row in range(*bank.rank_rows(slot).indices(bank.num_rank_rows))}
    assert len(occupied_rows) == sum(bank.spec(slot).r for slot in inside)
    free = [row for row in range(bank.num_rank_rows) if row not in occupied_rows]
    assert not bank.weights_RD[free].any()


def test_the_optimizer_says_what_is_kept_of_a_parameter() -> None:
    bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16, moments=MOMENTS)
    # weights, gradients and the first moment in float32, the second in float64
    assert bank.num_bytes == 16 * LAYOUT.width * (3 * 4 + 8)
    state = AdapterState(weights=torch.ones(2, LAYOUT.width), moments={"momentum": torch.ones(2, LAYOUT.width)})
    with pytest.raises(ValueError, match=r"moments \['momentum'\] for a bank with moments \['mean', 'square'\]"):
        bank.insert(AdapterSpec(r=2, lora_alpha=1), state)
    assert not bank.occupied


def test_an_adapter_without_moments_begins_with_zeros() -> None:
    bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16, moments=MOMENTS)
    bank.remove(bank.insert(AdapterSpec(r=5, lora_alpha=1), state_of(5, fill=float("nan"))))
    slot = bank.insert(AdapterSpec(r=3, lora_alpha=1), AdapterState(weights=torch.ones(3, LAYOUT.width)))
    found = bank.read(slot)
    assert found.weights.all()
    assert not any(moment.any() for moment in found.moments.values())


def test_gradients_outside_of_blocks_are_zeros_before_an_update_even_where_they_are_nan() -> None:
    layout = AdapterLayout({"l.q_proj": (3, 4), "l.o_proj": (4, 3)})
    blocks = BlockDiagonal(nblocks=2)
    bank = AdapterBank(layout, num_slots=2, num_rank_rows=32)
    plain, own = (
        bank.insert(spec, AdapterState(weights=torch.ones(4, layout.width)))
        for spec in (AdapterSpec(r=4, lora_alpha=8.0), AdapterSpec(r=4, lora_alpha=8.0, use_bdlora=blocks))
    )
    bank.grads_RD.fill_(float("nan"))
    bank.before_update((plain, own))
    outside = outside_blocks(layout, blocks).repeat_interleave(2, dim=0)
    assert not bank.grads_RD[bank.rank_rows(own)][outside].any()
    assert bank.grads_RD[bank.rank_rows(own)][~outside].isnan().all()
    assert bank.grads_RD[bank.rank_rows(plain)].isnan().all()
