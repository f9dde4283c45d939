"""A trial alone, in packs with other neighbours, under other micro-batch splits, parked and returned: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.core.events import StepDone
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS
from cohort.training.schedules import Schedule, ScheduleOptions
from cohort.training.trial import TrialSpec
from tests.training.invariants.variants import VARIANTS
from tests.training.small_models import compared_rows, random_rows, save_llama, save_qwen2

STEPS = 4
OPTIM = ("adamw", "lion", "muon", "sgd")
ROWS = random_rows(40, seed=3)
VALIDATION = random_rows(9, seed=4)
# pairs, with labels and what a reference gives them: every objective reads them
COMPARED, COMPARED_VALIDATION = compared_rows(40, seed=3), compared_rows(10, seed=4)


def trial(
    trial_id: int,
    *,
    r: int = 8,
    batch_size: int = 2,
    dropout: float = 0.0,
    learning_rate: float = 5e-3,
    loraplus_lr_ratio: float = 1.0,
    nblocks: int = 1,
) -> TrialSpec:
    blocks = BlockDiagonal(nblocks=nblocks) if nblocks > 1 else None
    return TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout, use_bdlora=blocks),
        learning_rate=learning_rate,
        batch_size=batch_size,
        num_steps=STEPS,
        loraplus_lr_ratio=loraplus_lr_ratio,
    )


# one that samples its own answers has no terms of rows
OF_ROWS = [OBJECTIVES[entry.name] for entry in OBJECTIVE_DECLARATIONS.built_in() if not entry.samples_answers]

# optimizers, objectives and schedules in turn, so that all kinds of them share a pack, too
OF_VARIANTS = [
    replace(
        trial(10 + n),
        adapter=adapter,
        optim=OPTIM[n % len(OPTIM)] if adapter.has_only_factors else "adamw",
        objective=OF_ROWS[n % len(OF_ROWS)],
        beta1=0.9 - 0.1 * (n % 3),
        beta2=(0.999, 0.9)[n % 2],
        epsilon=(1e-8, 1e-4, 1e-6)[n % 3],
        schedule=list(Schedule)[n % len(Schedule)],
        schedule_options=ScheduleOptions(min_lr_rate=0.2, num_decay_steps=2),
    )
    for n, adapter in enumerate(VARIANTS.values())
]
SUBJECTS = [
    trial(0, r=4, batch_size=1),
    trial(0, r=16, batch_size=4, dropout=0.3),
    trial(0, r=64, batch_size=8, loraplus_lr_ratio=4.0),
    trial(0, r=7, batch_size=3),
    trial(0, r=12, batch_size=4, dropout=0.2, nblocks=4),
]
NEIGHBOURS = [
    trial(1, r=16, batch_size=8, dropout=0.1),
    trial(2, r=64, batch_size=1, loraplus_lr_ratio=0.5),
    trial(3, r=4, batch_size=4, learning_rate=1e-1),
    trial(4, r=33, batch_size=2),
    trial(5, r=8, batch_size=3, nblocks=2),
    trial(6, r=5, batch_size=1),
    trial(7, r=32, batch_size=2, dropout=0.5),
]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    {"llama": save_llama, "qwen2": save_qwen2}[request.param](directory)
    return load_decoder(directory, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def with_biases(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("biased")
    save_qwen2(directory)
    return load_decoder(directory, dtype="float32", device="cpu")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def executor_for(decoder: Decoder, *, token_budget: int = 10_000, rows: TokenisedRows = ROWS) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=24, num_rank_rows=768, token_budget=token_budget, evaluation_token_budget=token_budget
        ),
    )


def outcome(executor: Executor, subject: TrialSpec, events: Sequence[StepDone]) -> tuple[list[StepDone], Tensor, float]:
    mine = [event for event in events if event.trial_id == subject.trial_id]
    rows = COMPARED_VALIDATION if executor.train_rows is COMPARED else VALIDATION
    row_ids = range(len(rows) // subject.objective.group_size)
    evaluated = executor.evaluate([subject.trial_id], rows=rows, row_ids=row_ids)
    return mine, executor.weights(subject.trial_id), evaluated[subject.trial_id].loss


def alone(decoder: Decoder, subject: TrialSpec, *, rows: TokenisedRows = ROWS) -> tuple[list[StepDone], Tensor, float]:
    executor = executor_for(decoder, rows=rows)
    executor.load(subject)
    return outcome(executor, subject, [event for _ in range(STEPS) for event in executor.step()])


def assert_same(found: tuple[list[StepDone], Tensor, float], expected: tuple[list[StepDone], Tensor, float]) -> None:
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])
    assert found[2] == expected[2]


# each on one of the models, which differ in their biases
@pytest.mark.parametrize(
    ("decoder", "subject"),
    [(("llama", "qwen2")[n % 2], subject) for n, subject in enumerate(SUBJECTS)],
    ids=[f"r{subject.adapter.r}" for subject in SUBJECTS],
    indirect=["decoder"],
)
def test_neighbours_and_splits_change_no_bit(decoder: Decoder, subject: TrialSpec) -> None:
    expected = alone(decoder, subject)
    for token_budget in (10_000, 60):
        assert_same(in_a_pack_of_eight(decoder, subject, token_budget=token_budget), expected)


@pytest.fixture(scope="module")
def in_a_varied_pack(with_biases: Decoder) -> dict[int, tuple[list[StepDone], Tensor, float]]:
    """Plain LoRA and every variant in one pack, trained by every objective."""
    executor = executor_for(with_biases, token_budget=60, rows=COMPARED)
    for spec in [SUBJECTS[1], *OF_VARIANTS]:
        executor.load(spec)
    events = [event for _ in range(STEPS) for event in executor.step()]
    return {spec.trial_id: outcome(executor, spec, events) for spec in [SUBJECTS[1], *OF_VARIANTS]}


@pytest.mark.parametrize("subject", [SUBJECTS[1], *OF_VARIANTS], ids=["plain", *VARIANTS])
def test_variants_in_one_pack_have_the_bits_they_have_alone(
    with_biases: Decoder, in_a_varied_pack: dict[int, tuple[list[StepDone], Tensor, float]], subject: TrialSpec
) -> None:
    assert_same(in_a_varied_pack[subject.trial_id], alone(with_biases, subject, rows=COMPARED))


@pytest.fixture(scope="module")
def unharmed(with_biases: Decoder) -> dict[str, tuple[list[StepDone], Tensor, float]]:
    """Two variants as they end alone."""
    return {name: alone(with_biases, of_variant(name), rows=COMPARED) for name in ("dora_patterns", "patterns")}


def of_variant(name: str) -> TrialSpec:
    return OF_VARIANTS[[*VARIANTS].index(name)]


@pytest.mark.parametrize("victim", VARIANTS)
def test_a_poisoned_variant_leaves_the_others_bits_alone(
    with_biases: Decoder, unharmed: dict[str, tuple[list[StepDone], Tensor, float]], victim: str
) -> None:
    name = "patterns" if victim == "dora_patterns" else "dora_patterns"
    subject, bad = of_variant(name), of_variant(victim)
    executor = executor_for(with_biases, rows=COMPARED)
    for spec in (bad, subject):
        executor.load(spec)
    events = list(executor.step())
    slot = executor.slot_of(bad.trial_id)
    executor.bank.weights_RD[executor.bank.rank_rows(slot)] = float("nan")
    executor.bank.refresh(slot)
    events += [event for _ in range(STEPS - 1) for event in executor.step()]
    assert_same(outcome(executor, subject, events), unharmed[name])


@pytest.mark.usefixtures("two_threads")
def test_neighbours_and_splits_change_no_bit_on_two_threads(decoder: Decoder) -> None:
    assert_same(in_a_pack_of_eight(decoder, SUBJECTS[1], token_budget=170), alone(decoder, SUBJECTS[1]))


def in_a_pack_of_eight(
    decoder: Decoder, subject: TrialSpec, *, token_budget: int
) -> tuple[list[StepDone], Tensor, float]:
    executor = executor_for(decoder, token_budget=token_budget)
    place = subject.adapter.r % len(NEIGHBOURS)
    for spec in [*NEIGHBOURS[:place], subject, *NEIGHBOURS[place:]]:
        executor.load(spec)
    events = [event for _ in range(STEPS) for event in executor.step()]
    assert len(events) == 8 * STEPS
    return outcome(executor, subject, events)


def test_parking_and_returning_among_others_changes_no_bit(decoder: Decoder) -> None:
    subject = SUBJECTS[1]
    expected = alone(decoder, subject)
    executor = executor_for(decoder)
    executor.load(NEIGHBOURS[0])
    executor.load(subject)
    events = [event for _ in range(2) for event in executor.step()]
    parked = executor.unload(subject.trial_id)
    for spec in NEIGHBOURS[1:4]:
        executor.load(spec)
    for _ in range(2):
        executor.step()
    executor.drop(NEIGHBOURS[0].trial_id)
    executor.load(NEIGHBOURS[5])
    executor.load(subject, parked)
    events += [event for _ in range(STEPS - 2) for event in executor.step()]
    assert_same(outcome(executor, subject, events), expected)


def test_evaluation_does_not_depend_on_who_is_beside(decoder: Decoder) -> None:
    executor = executor_for(decoder)
    for spec in [SUBJECTS[0], *NEIGHBOURS]:
        executor.load(spec)
    executor.step()
    ids = range(len(VALIDATION))
    together = executor.evaluate(executor.resident, rows=VALIDATION, row_ids=ids)
    for trial_id in executor.resident:
        assert executor.evaluate([trial_id], rows=VALIDATION, row_ids=ids)[trial_id] == together[trial_id]
    base = executor.evaluate_base(rows=VALIDATION, row_ids=ids)
    empty = executor_for(decoder).evaluate_base(rows=VALIDATION, row_ids=ids)
    assert base == empty


# with and without blocks
@pytest.mark.parametrize("subject", [SUBJECTS[0], SUBJECTS[4]], ids=["lora", "bdlora"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_adapter_leaves_the_others_bits_alone(decoder: Decoder, poison: float, subject: TrialSpec) -> None:
    expected = alone(decoder, subject)
    executor = executor_for(decoder)
    executor.load(NEIGHBOURS[0])
    executor.load(subject)
    executor.load(NEIGHBOURS[4])
    events = list(executor.step())
    for victim in (NEIGHBOURS[0], NEIGHBOURS[4]):
        executor.bank.weights_RD[executor.bank.rank_rows(executor.slot_of(victim.trial_id))] = poison
    poisoned = [event for _ in range(STEPS - 1) for event in executor.step()]
    bad = [event for event in poisoned if event.trial_id == NEIGHBOURS[0].trial_id]
    assert all(event.loss != event.loss or event.loss == float("inf") for event in bad)
    assert_same(outcome(executor, subject, events + poisoned), expected)


def test_a_step_of_some_residents_leaves_the_rest_alone(decoder: Decoder) -> None:
    executor = executor_for(decoder)
    executor.load(SUBJECTS[0])
    executor.load(NEIGHBOURS[0])
    before = executor.state(NEIGHBOURS[0].trial_id)
    events = executor.step([SUBJECTS[0].trial_id])
    after = executor.state(NEIGHBOURS[0].trial_id)
    assert [event.trial_id for event in events] == [0]
    assert after.step == before.step == 0
    assert torch.equal(after.adapter.weights, before.adapter.weights)
