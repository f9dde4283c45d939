"""Divided layers: ranks that copy each other's parts have the bits, moments included, of one process with all of them.

The ranks are executors of this process; each has its own part of the layers and opens those of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.models.streaming.weight_ring import NUM_BUFFERS
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.training.device_memory import DeviceMemory
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama, save_qwen2

NUM_LAYERS, STEPS = 5, 3
CPU = torch.device("cpu")
ALL, SOME = tuple(range(NUM_LAYERS)), (0, 2, 4)
NEVER, ALWAYS = GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS


def executor_of(model: Path, weights: RankWeights, mode: GradientCheckpointing, *, rank: int = 0) -> LocalExecutor:
    decoder = load_decoder(model, streaming=weights.streaming(CPU, rank=rank))
    return LocalExecutor(
        decoder,
        target_linears=decoder.linears,
        train_rows=random_rows(12),
        settings=ExecutorSettings(
            num_slots=3, num_rank_rows=48, token_budget=4096, evaluation_token_budget=4096, gradient_checkpointing=mode
        ),
    )


def spec_of(trial_id: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=8.0, lora_dropout=0.1 * trial_id),
        learning_rate=1e-2,
        batch_size=3,
        num_steps=STEPS + 1,
        max_grad_norm=1.0,
    )


@pytest.mark.parametrize(
    ("save", "num_ranks", "layers", "mode"),
    [
        (save_llama, 2, ALL, NEVER),
        (save_llama, 4, SOME, ALWAYS),
        (save_qwen2, 4, ALL, ALWAYS),
        # all resident: replicas
        (save_qwen2, 2, (), NEVER),
    ],
)
def test_ranks_have_the_bits_of_one_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save: Callable[..., object],
    num_ranks: int,
    layers: tuple[int, ...],
    mode: GradientCheckpointing,
) -> None:
    save(tmp_path, num_layers=NUM_LAYERS)
    alone = executor_of(tmp_path, ALL_RESIDENT, mode)
    weights = RankWeights(layers=layers, num_ranks=num_ranks, are_divided=bool(layers))
    ranks = [executor_of(tmp_path, weights, mode, rank=rank) for rank in range(num_ranks)]
    if layers:
        handles = [rank.share_parts() for rank in ranks]
        assert [rank.connect_parts(handles) for rank in ranks] == [()] * num_ranks
    # the last rank has no trial and computes nothing, and no other waits for it
    own = {trial_id: ranks[trial_id % (num_ranks - 1)] for trial_id in range(3)}
    for trial_id, rank in own.items():
        alone.load(spec_of(trial_id))
        rank.load(spec_of(trial_id))
    for step in range(STEPS):
        before = [0 if rank.decoder.ring is None else rank.decoder.ring.num_fetches for rank in ranks]
        found = [event for rank in ranks for event in rank.step()]
        expected = alone.step()
        assert sorted(found, key=lambda event: event.trial_id) == list(expected)
        for rank, count in zip(ranks, before, strict=True):
            if rank.decoder.ring is not None:
                training = 2 * (len(layers) - NUM_BUFFERS) if step else 2 * len(layers) - NUM_BUFFERS
                assert rank.decoder.ring.num_fetches - count == (training if rank.resident else 0)
    # a pass that one rank repeats in smaller ones leaves the others alone
    working, usual = ranks[0], DeviceMemory.observe
    failures = [1]

    def short(self: DeviceMemory, *given: object) -> object:
        if self is working.memory and failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return usual(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceMemory, "observe", short)
    found = [event for rank in ranks for event in rank.step()]
    assert not failures
    assert sorted(found, key=lambda event: event.trial_id) == list(alone.step())
    for trial_id, rank in own.items():
        ours, theirs = rank.state(trial_id).adapter, alone.state(trial_id).adapter
        assert all(torch.equal(ours.tensors[name], tensor) for name, tensor in theirs.tensors.items())
    assert not dist.is_initialized(), "there is no collective"
    for rank in ranks:
        rank.close()
