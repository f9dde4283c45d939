"""Training on a divided model: losses, norms and whole states of one process; collectives of a step counted."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import ShardingError, replicated_columns
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.core.events import StepDone
from cohort.core.memory_records import GradientCheckpointing
from cohort.models.weights import load_decoder
from cohort.ranks.rank_group import TensorGroup
from cohort.ranks.tensor import sharded_executor as tensor_executor_module
from cohort.ranks.tensor.groups import OneRank, RankGroup
from cohort.ranks.tensor.sharded_executor import ShardedExecutor
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState
from tests.ranks.joined_states import join_states
from tests.ranks.tensor.divided_models import save_divided_qwen2
from tests.ranks.tensor.thread_group import run_threads
from tests.training.small_models import random_rows

STEPS = 8
ROWS = random_rows(24, seed=3, longest=20)
SETTINGS = ExecutorSettings(num_slots=4, num_rank_rows=128, token_budget=120, evaluation_token_budget=200)
SWAPPED = BlockDiagonal(nblocks=2, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)


def trial(trial_id: int, *, r: int = 8, dropout: float = 0.0, blocks: BlockDiagonal | None = None) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout, use_bdlora=blocks),
        learning_rate=5e-3,
        batch_size=4,
        num_steps=STEPS,
        weight_decay=0.01,
        # below the first norms, so that clipping acts
        max_grad_norm=0.5,
    )


TRIALS = (
    trial(0),
    trial(1, dropout=0.2),
    trial(2, blocks=BlockDiagonal(nblocks=4), dropout=0.1),
    trial(3, r=4, blocks=SWAPPED),
)


@functools.cache
def alone(folder: Path, dtype: torch.dtype) -> tuple[list[StepDone], list[TrialState]]:
    decoder = load_decoder(folder, dtype=str(dtype).removeprefix("torch."))
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=ROWS, settings=SETTINGS, dtype=dtype)
    for spec in TRIALS:
        executor.load(spec)
    events = [event for _ in range(STEPS) for event in executor.step()]
    return events, [executor.state(spec.trial_id) for spec in TRIALS]


def divided(
    group: RankGroup, folder: Path, dtype: torch.dtype
) -> tuple[list[StepDone], list[TrialState], Counter[str]]:
    executor = tensor_executor(group, folder, dtype)
    for spec in TRIALS:
        executor.load(spec)
    events = [event for _ in range(STEPS - 1) for event in executor.step()]
    group.counts.clear()
    events += executor.step()
    counts = Counter(group.counts)
    return events, [executor.state(spec.trial_id) for spec in TRIALS], counts


def whole(folder: Path, dtype: torch.dtype, parts: Sequence[Sequence[TrialState]]) -> list[TrialState]:
    """Join the parts of each trial's state that the ranks have."""
    layout = AdapterLayout(dict(load_decoder(folder, dtype=str(dtype).removeprefix("torch.")).linears))
    plan = TensorGroup(size=len(parts))
    return [join_states(plan, layout, spec, own) for spec, own in zip(TRIALS, zip(*parts, strict=True), strict=True)]


def layout_of(folder: Path) -> AdapterLayout:
    return AdapterLayout(dict(load_decoder(folder).linears))


def tensor_executor(
    group: RankGroup, folder: Path, dtype: torch.dtype, *, mode: GradientCheckpointing = GradientCheckpointing.NEVER
) -> ShardedExecutor:
    layout = AdapterLayout(dict(load_decoder(folder, dtype=str(dtype).removeprefix("torch.")).linears))
    decoder = load_tensor_decoder(folder, group, dtype=dtype)
    settings = dataclasses.replace(SETTINGS, gradient_checkpointing=mode)
    return ShardedExecutor(decoder, group, layout=layout, train_rows=ROWS, settings=settings, dtype=dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_divided_qwen2(folder)
    return folder


# losses and weights apart: AdamW turns the rounding of a small gradient into a step of the learning rate's size
@pytest.mark.parametrize(
    ("size", "dtype", "of_losses", "of_weights"),
    [
        (1, torch.float32, 1e-6, 1e-4),
        (2, torch.float64, 1e-12, 1e-12),
        (4, torch.float64, 1e-12, 1e-12),
        (2, torch.float32, 1e-6, 1e-4),
        (4, torch.float32, 1e-6, 1e-4),
    ],
)
def test_a_pack_trains_as_in_one_process(
    folder: Path, size: int, dtype: torch.dtype, of_losses: float, of_weights: float
) -> None:
    events, states = alone(folder, dtype)
    found = run_threads(size, lambda group: divided(group, folder, dtype))
    joined = whole(folder, dtype, [own_states for _, own_states, _ in found])
    for own, expected in zip(joined, states, strict=True):
        assert own.step == expected.step
        for name, tensor in expected.adapter.tensors.items():
            error = (own.adapter.tensors[name] - tensor).norm() / tensor.norm()
            assert error < of_weights, name
    for own_events, own_states, counts in found:
        assert [event.loss for event in own_events] == pytest.approx([event.loss for event in events], rel=of_losses)
        assert [e.grad_norm for e in own_events] == pytest.approx([e.grad_norm for e in events], rel=10 * of_losses)
        # ranks agree to the bit: what several of them hold is stepped alike
        assert own_events == found[0][0]
        for spec, ours, firsts in zip(TRIALS, own_states, found[0][1], strict=True):
            shared_D = replicated_columns(layout_of(folder), spec.adapter, size=size)
            assert torch.equal(ours.adapter.weights[:, shared_D], firsts.adapter.weights[:, shared_D])
        if size > 1:
            passes = counts["all_gather"]
            assert passes == 2, "as many micro-batches as the budget of tokens makes"
            # two forward and two backward a layer of two layers, one for the gradients of the hidden rows; of the step
            # one for shared factors and one for norms; a chunk of logits a pass
            assert counts == Counter(all_reduce=passes * (2 * 2 * 2 + 1) + 2, all_gather=passes)
        else:
            assert counts == Counter()


@pytest.mark.parametrize("mode", [GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS])
def test_blocks_of_a_rank_s_own_are_trained_without_an_exchange_of_gradients(
    folder: Path, mode: GradientCheckpointing
) -> None:
    def on(group: RankGroup) -> Counter[str]:
        executor = tensor_executor(group, folder, torch.float32, mode=mode)
        executor.load(TRIALS[2])
        group.counts.clear()
        executor.step()
        return Counter(group.counts)

    # one pass: 8 of the base, 1 of the head, 1 for the norm; none for factors. What a recomputed layer gives is known
    # already, so its last sum is not made again
    again = 2 if mode is GradientCheckpointing.ALWAYS else 0
    assert run_threads(2, on) == [Counter(all_reduce=8 + again + 1 + 1, all_gather=1)] * 2


def test_a_trial_goes_on_with_another_number_of_ranks(folder: Path) -> None:
    events, _ = alone(folder, torch.float32)

    def begin(group: RankGroup) -> list[TrialState]:
        executor = tensor_executor(group, folder, torch.float32)
        for spec in TRIALS:
            executor.load(spec)
        for _ in range(4):
            executor.step()
        return [executor.state(spec.trial_id) for spec in TRIALS]

    states = whole(folder, torch.float32, run_threads(4, begin))

    def go_on(group: RankGroup) -> list[float]:
        executor = tensor_executor(group, folder, torch.float32)
        for spec, state in zip(TRIALS, states, strict=True):
            executor.load(spec, state)
        return [event.loss for _ in range(4) for event in executor.step()]

    expected = [event.loss for event in events[4 * len(TRIALS) :]]
    assert run_threads(2, go_on)[0] == pytest.approx(expected, rel=1e-5)


def test_blocks_that_some_ranks_share_are_refused(folder: Path) -> None:
    adapter = AdapterSpec(r=8, lora_alpha=8.0, use_bdlora=BlockDiagonal(nblocks=2))
    shared = dataclasses.replace(TRIALS[0], adapter=adapter)
    with pytest.raises(ShardingError, match="training 2 blocks on 4 ranks"):
        run_threads(4, lambda group: tensor_executor(group, folder, torch.float32).load(shared))


@pytest.mark.parametrize("optim", ["muon", "adamw_8bit"])
def test_optimizers_that_need_whole_factors_are_refused(folder: Path, optim: str) -> None:
    spec = dataclasses.replace(TRIALS[0], optim=optim)
    with pytest.raises(ShardingError, match=f"optim: {optim} on 2 ranks"):
        run_threads(2, lambda group: tensor_executor(group, folder, torch.float32).load(spec))


def test_one_rank_needs_no_group(folder: Path) -> None:
    executor = tensor_executor(OneRank(), folder, torch.float32)
    executor.load(TRIALS[0])
    assert executor.step()[0].loss > 0
    executor.drop(0)


def test_trials_of_one_seed_share_what_they_begin_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counted(*asked: Any, **more: Any) -> torch.Tensor:
        drawn.append(asked)
        return initial_weights(*asked, **more)

    monkeypatch.setattr(tensor_executor_module, "initial_weights", counted)
    executor = tensor_executor(OneRank(), folder, torch.float32)
    for number in range(3):
        executor.load(dataclasses.replace(trial(number), seed=7))
    assert len(drawn) == 1
    first, *others = (executor.weights(number) for number in range(3))
    assert all(torch.equal(first, other) for other in others)
    assert torch.equal(first, initial_weights(layout_of(folder), trial(0).adapter, seed=7))
