"""Passes that keep only what enters their layers: the same bits, less memory, and only where nothing else is left."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import SampleTooLargeError
from cohort.core.memory_records import GradientCheckpointing, PassKind, PassPeak
from cohort.kernels.backend import Backend, triton_interprets, use_backend
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from tests.training.invariants.test_out_of_memory import (
    ROWS,
    TRIALS,
    FaultyMeter,
    Outcome,
    assert_same,
    executor_for,
    train,
)
from tests.training.small_models import random_rows, save_llama

NO_LIMIT = 1 << 40
NUM_LAYERS = 4


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory, num_layers=NUM_LAYERS)
    return load_decoder(directory, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def largest_rows(decoder: Decoder) -> tuple[int, int]:
    """What the first step's largest row takes, recomputed and with everything kept."""
    modes = (GradientCheckpointing.ALWAYS, GradientCheckpointing.NEVER)
    recomputed, kept = (max(peak.num_bytes for peak in step_peaks(decoder, mode)) for mode in modes)
    return recomputed, kept


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> Outcome:
    return train(executor_for(decoder))


def training_peaks(executor: Executor) -> list[PassPeak]:
    return [peak for peak in executor.memory.take_peaks() if peak.kind is PassKind.TRAIN]


def step_peaks(decoder: Decoder, gradient_checkpointing: GradientCheckpointing) -> list[PassPeak]:
    """Peaks of the first step, row by row."""
    executor = executor_for(
        decoder, token_budget=1, limit_bytes=NO_LIMIT, gradient_checkpointing=gradient_checkpointing
    )
    executor.memory.observe_next(200)
    executor.step()
    return training_peaks(executor)


@pytest.mark.parametrize("token_budget", [10_000, 90, 1])
def test_recomputed_training_has_the_same_bits(decoder: Decoder, expected: Outcome, token_budget: int) -> None:
    """Ranks 4 to 33, batch sizes 1 to 5, ragged rows, one trial with dropout; one pass, a few, and row by row."""
    executor = executor_for(decoder, token_budget=token_budget, gradient_checkpointing=GradientCheckpointing.ALWAYS)
    assert_same(train(executor), expected)
    assert executor.gradient_checkpointing.num_passes >= len(expected[0]) // len(TRIALS)
    assert not executor.take_shortages()


def test_passes_up_to_the_limit_keep_and_larger_ones_do_not(decoder: Decoder, expected: Outcome) -> None:
    executor = executor_for(decoder, token_budget=60, keep_tokens=40, limit_bytes=NO_LIMIT)
    executor.memory.observe_next(200)
    assert_same(train(executor), expected)
    peaks = training_peaks(executor)
    assert {peak.size.recomputed for peak in peaks} == {False, True}
    assert executor.gradient_checkpointing.num_passes == sum(peak.size.recomputed for peak in peaks)
    # rows are filled up to a multiple of 16: passes of 48 may be of either kind
    assert all(peak.size.recomputed for peak in peaks if peak.size.num_rows > 48)
    assert not any(peak.size.recomputed for peak in peaks if peak.size.num_rows <= 32)


def test_memory_falls_to_the_streams_and_one_layer(decoder: Decoder) -> None:
    """What a layer keeps is a stream of D float32 values a row; the layer being recomputed is the rest."""
    kept, recomputed = (
        step_peaks(decoder, mode) for mode in (GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS)
    )
    for full, less in zip(kept, recomputed, strict=True):
        assert (full.size.num_rows, full.size.recomputed) == (less.size.num_rows, False)
        assert less.size.recomputed
        rows = less.size.num_rows
        streams = rows * 48 * 4 * NUM_LAYERS
        # a layer keeps some 15 streams' worth here and its gradients need as much again
        assert streams < less.num_bytes < full.num_bytes
        assert less.num_bytes < streams + 2.5 * full.num_bytes / NUM_LAYERS
    longest = max(range(len(kept)), key=lambda index: kept[index].size.num_rows)
    assert recomputed[longest].num_bytes < 0.5 * kept[longest].num_bytes


def limit_between(decoder: Decoder, largest_rows: tuple[int, int], share: float) -> int:
    """Return a limit so far from what the largest row takes recomputed to what it takes with everything kept."""
    resident = decoder.num_bytes + executor_for(decoder).bank.num_bytes
    return resident + round(largest_rows[0] + share * (largest_rows[1] - largest_rows[0]))


def test_a_row_that_does_not_fit_with_all_kept_trains_to_the_same_bits(
    decoder: Decoder, largest_rows: tuple[int, int], expected: Outcome
) -> None:
    limit = limit_between(decoder, largest_rows, 0.6)
    executor = executor_for(decoder, limit_bytes=limit)
    assert_same(train(executor), expected)
    shortages = executor.take_shortages()
    kept = [shortage.keep_tokens for shortage in shortages if shortage.keep_tokens is not None]
    assert kept, "the largest row was recomputed"
    assert shortages[0].keep_tokens is None, "passes of several rows were split before"
    assert executor.gradient_checkpointing.keep_tokens == min(kept)
    assert executor.gradient_checkpointing.num_passes > 0
    peaks = training_peaks(executor)
    assert {peak.size.recomputed for peak in peaks} == {False, True}, "what fits is not recomputed"
    assert executor.memory.highest_bytes + decoder.num_bytes + executor.bank.num_bytes <= limit


@pytest.mark.parametrize(
    ("mode", "share", "found", "hint"),
    [
        (
            GradientCheckpointing.NEVER,
            0.6,
            "a pass of its own,",
            "Set memory.gradient_checkpointing: auto, set dataset.max_length below",
        ),
        (GradientCheckpointing.AUTO, -0.3, "with every layer recomputed", "Set dataset.max_length below"),
        (GradientCheckpointing.ALWAYS, -0.3, "with every layer recomputed", "Set dataset.max_length below"),
    ],
)
def test_a_row_that_fits_in_no_way_is_named(
    decoder: Decoder, largest_rows: tuple[int, int], mode: GradientCheckpointing, share: float, found: str, hint: str
) -> None:
    executor = executor_for(
        decoder, limit_bytes=limit_between(decoder, largest_rows, share), gradient_checkpointing=mode
    )
    before = [executor.weights(spec.trial_id) for spec in TRIALS]
    with pytest.raises(SampleTooLargeError) as raised:
        executor.step()
    (problem,) = raised.value.problems
    row = int(str(problem.where).removeprefix("random:")) - 1
    assert f"{ROWS.lengths[row]:,} tokens of trial " in problem.found
    assert found in f"{problem.found},"
    assert problem.hint.startswith(hint)
    assert all(torch.equal(executor.weights(spec.trial_id), then) for spec, then in zip(TRIALS, before, strict=True))
    assert not executor.bank.grads_RD.any()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))])
def test_memory_that_runs_out_at_every_way_out_changes_no_bit(decoder: Decoder, expected: Outcome, seed: int) -> None:
    """Split to single rows, then recomputed, then whatever only saves time given up; faults in each of them."""
    rng = random.Random(seed)
    executor = executor_for(decoder, limit_bytes=NO_LIMIT)
    # a pass allocates some hundreds of tensors
    meter = FaultyMeter(list(accumulate(rng.randint(1, 150) for _ in range(9))))
    executor.memory._meter = meter
    executor.reliefs.append(lambda: True)
    assert_same(train(executor), expected)
    assert meter.num_thrown == 9
    shortages = executor.take_shortages()
    kept = [shortage for shortage in shortages if shortage.keep_tokens is not None]
    assert len(shortages) > len(kept) > 0
    assert executor.gradient_checkpointing.num_passes > 0
    assert meter.live_bytes < 1 << 20, "what failed passes held is free again"


@pytest.mark.slow  # 26 s in the interpreter; plain torch shows the same above, and a GPU runs it in seconds
@pytest.mark.skipif(not triton_interprets(), reason="the gpu tests run the kernels")
def test_grouped_kernels_write_fresh_gradients_once(tmp_path: Path) -> None:
    """Two micro-batches a step, the first of a slot writing over what its sinks hold, one trial with dropout."""
    pytest.importorskip("triton")
    save_llama(tmp_path, num_layers=1)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    rows = random_rows(8, seed=3, longest=9)
    settings: dict[str, Any] = {"num_slots": 2, "num_rank_rows": 32, "token_budget": 10, "evaluation_token_budget": 10}
    weights = []
    with use_backend(Backend.TRITON):
        for mode in (GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS):
            executor = Executor(
                decoder,
                target_linears=decoder.linears,
                train_rows=rows,
                settings=ExecutorSettings(**settings, gradient_checkpointing=mode),
            )
            assert executor.bank.writes_gradients
            for spec in TRIALS[0], TRIALS[3]:
                executor.load(spec)
            executor.bank.grads_RD.fill_(5.0)
            executor.step()
            weights.append([executor.weights(trial_id) for trial_id in executor.resident])
    assert executor.gradient_checkpointing.num_passes > 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*weights, strict=True))


def test_the_policy() -> None:
    auto = GradientCheckpointingPolicy(GradientCheckpointing.AUTO, keep_tokens=None, device="cuda")
    assert not auto.is_for(1 << 30)
    assert not auto.takes_over(1024, can_split=True), "half of it is still recorded as a graph"
    assert auto.takes_over(1000, can_split=True)
    assert auto.keep_tokens == 999
    assert auto.is_for(1000)
    assert not auto.takes_over(1000, can_split=True), "it was recomputed, and did not fit all the same"
    assert not auto.is_for(999)
    auto.lower(2000)
    assert auto.keep_tokens == 999
    assert auto.takes_over(10, can_split=False)
    assert auto.keep_tokens == 9
    for mode, recomputes in ((GradientCheckpointing.ALWAYS, True), (GradientCheckpointing.NEVER, False)):
        policy = GradientCheckpointingPolicy(mode, keep_tokens=5, device="cpu")
        policy.lower(3)
        assert policy.is_for(1) is policy.is_for(1 << 30) is recomputes
        assert not policy.takes_over(10, can_split=False)
