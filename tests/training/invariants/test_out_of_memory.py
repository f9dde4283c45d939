"""Memory that runs out in any pass: done again in smaller ones, the same bits, nothing lost, or a row that is named."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import MemoryLimitError, SampleTooLargeError
from cohort.core.events import StepDone
from cohort.core.memory_records import GradientCheckpointing, PassKind
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.device_memory import StorageMeter, is_out_of_memory
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

STEPS = 2
ROWS = random_rows(40, seed=3)
VALIDATION = random_rows(5, seed=4)
TRIALS = [
    TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout),
        learning_rate=5e-3,
        batch_size=batch_size,
        num_steps=STEPS,
    )
    for trial_id, (r, batch_size, dropout) in enumerate([(4, 1, 0.0), (16, 5, 0.0), (33, 2, 0.0), (8, 2, 0.1)])
]

Outcome = tuple[list[StepDone], list[Tensor], dict[int, float]]


class FaultyMeter(StorageMeter):
    """Throws the error of a GPU at given allocations, counted over all passes."""

    def __init__(self, faults: Collection[int] = ()) -> None:
        super().__init__()
        self.faults, self.num_allocations, self.num_thrown = frozenset(faults), 0, 0

    def _count(self, tensor: Tensor) -> None:
        super()._count(tensor)
        self.num_allocations += 1
        if self.num_allocations in self.faults:
            self.num_thrown += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate (injected)")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory)
    return load_decoder(directory, dtype="float32", device="cpu")


def executor_for(
    decoder: Decoder,
    *,
    token_budget: int = 10_000,
    limit_bytes: int | None = None,
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.AUTO,
    keep_tokens: int | None = None,
) -> Executor:
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=ROWS,
        settings=ExecutorSettings(
            num_slots=8,
            num_rank_rows=128,
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            gradient_checkpointing=gradient_checkpointing,
            keep_tokens=keep_tokens,
        ),
        memory_limit_bytes=limit_bytes,
    )
    for spec in TRIALS:
        executor.load(spec)
    return executor


def train(executor: Executor, after_step: Callable[[], object] = lambda: None) -> Outcome:
    """Train, evaluating after every step."""
    events: list[StepDone] = []
    losses: dict[int, float] = {}
    for _ in range(STEPS):
        events += executor.step()
        found = executor.evaluate(executor.resident, rows=VALIDATION, row_ids=range(len(VALIDATION)))
        losses = {trial_id: outcome.loss for trial_id, outcome in found.items()}
        after_step()
    weights = [
        tensor
        for spec in TRIALS
        for tensor in (executor.weights(spec.trial_id), executor.state(spec.trial_id).adapter.moments["exp_avg_sq"])
    ]
    return events, weights, losses


def assert_same(found: Outcome, expected: Outcome) -> None:
    assert found[0] == expected[0]
    assert found[2] == expected[2]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[1], expected[1], strict=True))


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> Outcome:
    return train(executor_for(decoder))


def num_allocations(decoder: Decoder, work: Callable[[Executor], object]) -> int:
    executor = executor_for(decoder)
    meter = FaultyMeter()
    executor.memory._meter = meter
    work(executor)
    return meter.num_allocations


def throw_at(decoder: Decoder, expected: Outcome, faults: Sequence[int]) -> None:
    executor = executor_for(decoder)
    meter = FaultyMeter(faults)
    executor.memory._meter = meter
    assert_same(train(executor), expected)
    shortages = executor.take_shortages()
    assert meter.num_thrown == len(shortages) == len(faults)
    assert all(
        shortage.keep_tokens == shortage.num_tokens - 1
        or shortage.budget_after < min(shortage.budget_before, shortage.num_tokens)
        for shortage in shortages
    )
    assert executor.take_shortages() == ()
    assert min(executor.token_budgets.values()) < 10_000
    assert meter.live_bytes < 1 << 20, "what failed passes held is free again"


@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_memory_that_runs_out_anywhere_changes_no_bit(decoder: Decoder, expected: Outcome, count: int) -> None:
    """At random allocations of forward and backward passes and of evaluations, once or twice in a run."""
    rng = random.Random(count)
    total = num_allocations(decoder, train)
    for _ in range(count):
        throw_at(decoder, expected, sorted(rng.sample(range(1, total), rng.choice([1, 2]))))


def test_the_first_and_the_last_allocation_of_a_pass(decoder: Decoder, expected: Outcome) -> None:
    in_a_step = num_allocations(decoder, lambda executor: executor.step())
    for fault in (1, in_a_step // 2, in_a_step, in_a_step + 1):
        throw_at(decoder, expected, [fault])


def test_a_limit_is_kept_and_changes_no_bit(decoder: Decoder, expected: Outcome) -> None:
    """The limit is passed in earnest, again and again, until the passes are small enough; then never again."""
    resident = decoder.num_bytes + executor_for(decoder).bank.num_bytes
    free = executor_for(decoder, limit_bytes=1 << 40)
    train(free)
    most = max(peak.num_bytes for peak in free.memory.take_peaks())
    executor = executor_for(decoder, limit_bytes=resident + most // 3)
    in_each_step: list[int] = []
    assert_same(train(executor, lambda: in_each_step.append(len(executor.take_shortages()))), expected)
    assert in_each_step[0] > 0
    assert in_each_step[-1] == 0
    peaks = executor.memory.take_peaks()
    assert {peak.kind for peak in peaks} == set(PassKind)
    assert all(0 < peak.num_bytes <= most // 3 for peak in peaks)
    assert not executor.gradient_checkpointing.num_passes, "passes that can be cut are"


def test_one_row_that_cannot_fit_is_named_and_moves_nothing(decoder: Decoder) -> None:
    resident = decoder.num_bytes + executor_for(decoder).bank.num_bytes
    executor = executor_for(decoder, limit_bytes=resident + 1000)
    before = [executor.weights(spec.trial_id) for spec in TRIALS]
    with pytest.raises(SampleTooLargeError) as raised:
        executor.step()
    (problem,) = raised.value.problems
    assert str(problem.where).startswith("random:")
    assert "trial 0 (r = 4)" in problem.found
    assert f"{ROWS.lengths[int(str(problem.where).split(':')[1]) - 1]:,} tokens" in problem.found
    assert "max_length" in problem.hint
    assert all(state == 0 for state in (executor.state(spec.trial_id).step for spec in TRIALS))
    assert all(torch.equal(executor.weights(spec.trial_id), then) for spec, then in zip(TRIALS, before, strict=True))
    assert not executor.bank.grads_RD.any()
    with pytest.raises(SampleTooLargeError, match="the base model"):
        executor.evaluate_base(rows=VALIDATION, row_ids=range(len(VALIDATION)))


def test_what_only_saves_time_is_given_up_before_a_row(decoder: Decoder, expected: Outcome) -> None:
    executor = executor_for(decoder, token_budget=1, limit_bytes=1 << 40)
    meter = FaultyMeter([3, 8])  # in the first pass, and in the same one recomputed
    executor.memory._meter = meter
    asked: list[str] = []

    def relief(name: str, *, has_something: bool) -> Callable[[], bool]:
        def asked_for() -> bool:
            asked.append(name)
            return has_something

        return asked_for

    executor.reliefs += [relief("nothing", has_something=False), relief("something", has_something=True)]
    assert_same(train(executor), expected)
    assert asked == ["nothing", "something"]
    assert meter.num_thrown == 2
    assert executor.gradient_checkpointing.num_passes > 0


def test_what_fails_beside_the_update_leaves_the_step_undone(
    decoder: Decoder, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_for(decoder)
    before = [executor.weights(spec.trial_id) for spec in TRIALS]

    cat = torch.cat

    def refuse_the_step(*arguments: Any, **more: Any) -> Tensor:
        if sys._getframe(1).f_code is Executor.launch_step.__code__:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return cat(*arguments, **more)

    with monkeypatch.context() as faulty:
        faulty.setattr(torch, "cat", refuse_the_step)
        with pytest.raises(torch.OutOfMemoryError):
            executor.step()
    assert all(torch.equal(executor.weights(spec.trial_id), then) for spec, then in zip(TRIALS, before, strict=True))
    assert_same(train(executor), expected)


@pytest.mark.parametrize("gradient_checkpointing", [GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS])
def test_an_executor_is_freed_without_a_garbage_collection(
    decoder: Decoder, gradient_checkpointing: GradientCheckpointing
) -> None:
    """Its bank may be most of a GPU's memory."""
    executor = executor_for(decoder, gradient_checkpointing=gradient_checkpointing)
    executor.step()
    freed = weakref.ref(executor.bank)
    gc.disable()
    try:
        del executor
        assert freed() is None
    finally:
        gc.enable()


def test_other_errors_are_not_taken_for_it(decoder: Decoder) -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryLimitError("beyond the limit"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert is_out_of_memory(RuntimeError("[alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
    executor = executor_for(decoder)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    executor._passes.train = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="mat1"):
        executor.step()
    assert executor.take_shortages() == ()


def test_watching_a_pass_changes_no_bit_and_counts_what_lives() -> None:
    meter = StorageMeter()
    with meter:
        x = torch.ones(100, 10)
        y = (x * 2).view(10, 100)[2:]
        x.add_(1)
    assert meter.live_bytes == 2 * 4000
    del x
    assert meter.live_bytes == 4000
    del y
    assert meter.live_bytes == 0
    assert meter.peak_bytes == 8000
    meter.reset_peak()
    assert meter.peak_bytes == 0
