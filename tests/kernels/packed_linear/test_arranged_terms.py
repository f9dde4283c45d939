"""Terms of few rows by factors that are arranged once: the bits of the products sibling by sibling, as they are now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.packed_linear import arranged_terms as module
from cohort.kernels.packed_linear import packed_linear, per_slot
from cohort.kernels.packed_linear.arranged_terms import MOST_SLOTS, arranged_term, stamp_of
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

WIDTHS = (192, 64, 64)
INNER = 192


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def parts_of(generator: torch.Generator, *, num_rank_rows: int) -> list[LoraPart]:
    starts = (0, WIDTHS[0], WIDTHS[0] + WIDTHS[1])
    a = [torch.randn(num_rank_rows, INNER, generator=generator) for _ in WIDTHS]
    b = [torch.randn(num_rank_rows, width, generator=generator) for width in WIDTHS]
    return [
        LoraPart(a_RK=own_a, b_RN=own_b, column_start=start) for own_a, own_b, start in zip(a, b, starts, strict=True)
    ]


class Setup:
    """Three slots over q, k and v."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parts = parts_of(generator, num_rank_rows=48)
        self.slots = SlotTable(row_starts=(0, 16, 32), ranks=(8, 16, 4), scales=(2.0, 0.5, 1.0), dropouts=(0.0,) * 3)
        self.frozen = FrozenLinear(torch.randn(sum(WIDTHS), INNER, generator=generator))
        self.rows = torch.randn(64, INNER, generator=generator)

    def output(self, counts: Sequence[int], *, others: int = 0, filler: int = 0) -> Tensor:
        used = sum(counts) + others
        segments = SegmentTable.from_samples(
            [*counts, others],
            slots=[*range(len(counts)), -1],
            num_slots=3,
            num_rows=used + filler,
            multiplies_slots=True,
        )
        with torch.no_grad():
            y = packed_linear(
                self.rows[: used + filler], frozen=self.frozen, parts=self.parts, slots=self.slots, segments=segments
            )
        return y[:used]


@pytest.mark.parametrize("threads", [1, 2])
def test_terms_have_the_bits_of_the_products_sibling_by_sibling(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    torch.set_num_threads(threads)
    cases = [((1, 0, 0), 0, 3), ((1, 0, 0), 0, 0), ((1, 1, 1), 0, 1), ((3, 2, 1), 1, 1), ((4, 4, 4), 0, 0)]
    cases += [((1, 1, 1), 2, 0), ((7, 16, 20), 1, 4), ((32, 1, 1), 0, 2), ((1, 33, 5), 0, 9)]
    setup = Setup()
    found = [setup.output(counts, others=others, filler=filler) for counts, others, filler in cases]
    monkeypatch.setattr(per_slot, "stamp_of", lambda _: None)
    for case, own in zip(cases, found, strict=True):
        counts, others, filler = case
        assert torch.equal(own, setup.output(counts, others=others, filler=filler)), case


def test_a_term_is_arranged_once_while_nothing_is_written() -> None:
    setup = Setup()
    found = setup.output((1, 0, 0), filler=3)
    (first,) = setup.parts[0].arranged.values() or (None,)
    if first is None:
        pytest.skip("this machine's BLAS gives arranged factors other bits")
    assert torch.equal(setup.output((1, 0, 0), filler=3), found)
    assert next(iter(setup.parts[0].arranged.values())) is first
    setup.parts[2].b_RN[3] += 1.0
    changed = setup.output((1, 0, 0), filler=3)
    assert next(iter(setup.parts[0].arranged.values())) is not first
    assert not torch.equal(changed, found)


def _stepped(bank: AdapterBank) -> None:
    """One fused step of the optimizer, as training takes it."""
    state = [torch.zeros_like(bank.weights_RD) for _ in range(2)]
    bank.grads_RD.fill_(1.0)
    torch._fused_adamw_(
        [bank.weights_RD],
        [bank.grads_RD],
        [state[0]],
        [state[1]],
        [],
        [torch.ones(())],
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )
    bank.after_update([0])


def _replaced(bank: AdapterBank) -> None:
    bank.remove(0)
    bank.insert(AdapterSpec(r=8, lora_alpha=16), AdapterState(weights=torch.randn(8, bank.layout.width)))


@pytest.mark.parametrize("write", [_stepped, _replaced])
def test_what_writes_a_bank_is_seen(write: Callable[[AdapterBank], None]) -> None:
    layout = AdapterLayout({"model.layers.0.self_attn.o_proj": (INNER, 64)})
    bank = AdapterBank(layout, num_slots=2, num_rank_rows=32)
    bank.insert(AdapterSpec(r=8, lora_alpha=16), AdapterState(weights=torch.randn(8, layout.width)))
    frozen, x_TK = FrozenLinear(torch.randn(64, INNER)), torch.randn(4, INNER)
    segments = SegmentTable.from_samples([1], slots=[0], num_slots=2, num_rows=4, multiplies_slots=True)

    def output() -> Tensor:
        lora = bank.context(segments)
        parts = tuple(lora.factors.values())
        with torch.no_grad():
            return packed_linear(x_TK, frozen=frozen, parts=parts, slots=lora.slots, segments=segments)[0]

    before = output()
    with torch.no_grad():
        write(bank)
    after = output()
    rows = bank.rank_rows(0)
    part = next(iter(bank.context(segments).factors.values()))
    term = x_TK[:1].double() @ part.a_RK[rows].double().t() @ part.b_RN[rows].double() * 2.0
    # sums of 192 and 8 products of about 1, in float32
    torch.testing.assert_close(after.double(), frozen.forward(x_TK)[0].double() + term[0], rtol=1e-4, atol=1e-3)
    assert not torch.equal(before, after)


def test_large_factors_and_many_slots_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(torch.Generator().manual_seed(0), num_rank_rows=4 * (MOST_SLOTS + 3))

    def term(first: int) -> object:
        threads = torch.get_num_threads()
        stamp = stamp_of(parts)
        assert stamp is not None
        return arranged_term(
            parts,
            stamp=stamp,
            rank_rows=(first, first + 4),
            scale=2.0,
            product_width=sum(WIDTHS),
            num_threads=threads,
        )

    for slot in range(MOST_SLOTS + 3):
        term(4 * slot)
    assert len(parts[0].arranged) <= MOST_SLOTS
    monkeypatch.setattr(module, "MOST_ENTRIES", 12 * (INNER + sum(WIDTHS)) - 1)
    parts[0].arranged.clear()
    assert term(0) is None


@torch.inference_mode()
def test_factors_whose_writes_are_not_counted_are_not_arranged() -> None:
    setup = Setup()
    setup.output((1, 0, 0), filler=3)
    assert stamp_of(setup.parts) is None
    assert not setup.parts[0].arranged
