"""Passes: a staged one is used for exactly its samples, and the size that predicts a pass's memory is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import SlotSample, pack
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.captured_pass import StagedReplay
from cohort.training.device_memory import DeviceMemory
from cohort.training.group_terms import StepTerms, group_terms
from cohort.training.objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from cohort.training.passes import Passes, pass_size
from cohort.training.token_losses import token_losses
from tests.training.small_models import compared_rows, random_rows, save_llama

ROWS = random_rows(6, seed=9, longest=12)
ENTRIES = [SlotSample(slot=row // 3, sample=ROWS.sample(row)) for row in range(6)]
STEPS = {slot: StepTerms(objective=DEFAULT_OBJECTIVE, divisor=divisor) for slot, divisor in {0: 20, 1: 10}.items()}
NOTHING: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory, num_layers=1)
    return load_decoder(directory, dtype="float32", device="cpu")


@pytest.fixture
def bank(decoder: Decoder) -> AdapterBank:
    bank = AdapterBank(AdapterLayout(dict(decoder.linears)), num_slots=2, num_rank_rows=32)
    for r in (4, 7):
        weights = torch.randn(r, bank.layout.width, generator=torch.Generator().manual_seed(r)) * 0.1
        bank.insert(AdapterSpec(r=r, lora_alpha=float(r)), AdapterState(weights=weights))
    return bank


def passes_of(decoder: Decoder, bank: AdapterBank) -> Passes:
    return Passes(decoder, bank, memory=DeviceMemory("cpu"), captured=None)


def test_a_staged_pass_is_for_the_same_samples_in_the_same_bank(decoder: Decoder, bank: AdapterBank) -> None:
    staged = passes_of(decoder, bank).stage(ENTRIES, STEPS, fresh_slots=NOTHING)
    slots = bank.slot_table()
    assert staged.is_for(list(ENTRIES), slots=slots, fresh_slots=NOTHING)
    assert not staged.is_for(ENTRIES[:-1], slots=slots, fresh_slots=NOTHING)
    assert not staged.is_for(ENTRIES[::-1], slots=slots, fresh_slots=NOTHING)
    assert not staged.is_for(ENTRIES, slots=slots, fresh_slots=frozenset({0}))
    bank.remove(1)
    assert not staged.is_for(ENTRIES, slots=bank.slot_table(), fresh_slots=NOTHING)


def test_a_staged_pass_trains_as_one_that_is_not(decoder: Decoder, bank: AdapterBank) -> None:
    passes = passes_of(decoder, bank)
    expected = passes.train(ENTRIES, STEPS, fresh_slots=NOTHING)
    gradients = bank.grads_RD.clone()
    bank.grads_RD.zero_()
    staged = passes.stage(ENTRIES, STEPS, fresh_slots=NOTHING)
    found = passes.train(ENTRIES, STEPS, fresh_slots=NOTHING, staged=staged)
    assert torch.equal(found, expected)
    assert torch.equal(bank.grads_RD, gradients)
    # void: another pass was staged
    bank.grads_RD.zero_()
    other = passes.stage(ENTRIES[:2], STEPS, fresh_slots=NOTHING)
    assert torch.equal(passes.train(ENTRIES, STEPS, fresh_slots=NOTHING, staged=other), expected)
    assert torch.equal(bank.grads_RD, gradients)


class Recorded:
    """Stands for graphs: a forward pass, and a backward pass once the weights of the tokens are known."""

    awaits_weights = True

    def __init__(self, decoder: Decoder, bank: AdapterBank) -> None:
        self._decoder, self._bank = decoder, bank
        self.from_terms: bool | None = None

    def stage(self, entries: Any, *, divisors: Any, fresh_slots: Any, from_terms: bool, upcoming: Any) -> StagedReplay:
        del divisors, fresh_slots
        self._batch = pack(entries, num_slots=self._bank.num_slots)
        self.from_terms = from_terms
        graph: Any = self
        return StagedReplay(graph=graph, filling=0)

    def replay(self, _: StagedReplay) -> torch.Tensor:
        self._losses_T = token_losses(self._decoder, self._batch, self._bank.context(self._batch.segments))
        return self._losses_T.detach()

    def add_gradients(self, _: StagedReplay, weights_T: torch.Tensor) -> None:
        self._losses_T.backward(weights_T)


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_terms_stand_between_a_recorded_forward_and_backward_pass(
    decoder: Decoder, bank: AdapterBank, name: str
) -> None:
    rows, objective = compared_rows(6, seed=9, longest=12), OBJECTIVES[name]
    size = objective.group_size
    entries = [SlotSample(slot=int(row >= 2), sample=rows.sample(row), group_size=size) for row in range(6)]
    values = () if name == "dpo" else (0.1, 0.5)
    steps = {slot: StepTerms(objective=objective, divisor=divisor, values=values) for slot, divisor in ((0, 1), (1, 2))}
    expected = passes_of(decoder, bank).train(entries, steps, fresh_slots=NOTHING)
    gradients = bank.grads_RD.clone()
    assert gradients.any()
    bank.grads_RD.zero_()
    recorded: Any = Recorded(decoder, bank)
    passes = Passes(decoder, bank, memory=DeviceMemory("cpu"), captured=recorded)
    assert torch.equal(passes.train(entries, steps, fresh_slots=NOTHING), expected)
    assert torch.equal(bank.grads_RD, gradients)
    assert recorded.from_terms is True
    # plain sums among them: their weights come with the others
    mixed = {**steps, 0: StepTerms(objective=DEFAULT_OBJECTIVE, divisor=9)}
    entries[:2] = [SlotSample(slot=0, sample=rows.sample(row)) for row in range(2)]
    bank.grads_RD.zero_()
    expected = passes_of(decoder, bank).train(entries, mixed, fresh_slots=NOTHING)
    gradients = bank.grads_RD.clone()
    bank.grads_RD.zero_()
    recorded.from_terms = None
    assert torch.equal(passes.train(entries, mixed, fresh_slots=NOTHING), expected)
    assert torch.equal(bank.grads_RD, gradients)
    assert recorded.from_terms is True


def test_measuring_gives_the_losses_and_no_gradient(decoder: Decoder, bank: AdapterBank) -> None:
    passes = passes_of(decoder, bank)
    terms = group_terms(passes.measure(ENTRIES), ENTRIES, STEPS)
    assert not bank.grads_RD.any()
    assert torch.equal(terms, passes.train(ENTRIES, STEPS, fresh_slots=NOTHING))


def test_the_size_of_a_pass_counts_what_its_memory_depends_on(decoder: Decoder, bank: AdapterBank) -> None:
    batch = pack(ENTRIES, num_slots=2)
    size = pass_size(batch, bank.context(batch.segments), decoder=decoder, recomputed=True)
    lengths = ROWS.lengths.tolist()
    assert size.num_rows == batch.num_rows
    assert size.num_trained == int(ROWS.trained_T.sum())
    assert size.rank_entries == 4 * sum(lengths[:3]) + 7 * sum(lengths[3:])
    assert size.num_sequences == 6
    assert size.sum_squares == sum(length**2 for length in lengths)
    assert size.recomputed
