"""A second optimizer, defined here alone: bank, states, checkpoints and sizes take its moments as it declares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState, Moment
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.spec import AdapterSpec
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.data.packing import pack
from cohort.memory.size_inputs import rank_row_bytes
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.runs.directory import RunDirectory
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from cohort.training.optimizers.optimizer import Optimizer, moment_bytes
from cohort.training.step_samples import Resident, samples_of
from cohort.training.token_losses import token_losses, token_weights
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

STEPS = 6
ROWS = random_rows(20, seed=5, longest=20)


class Sgd(Optimizer):
    """``torch.optim.SGD`` with a momentum of ``beta1``, not clipped."""

    moments = (Moment("momentum"),)

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        norms = []
        for resident in residents:
            rows = bank.rank_rows(resident.slot)
            gradient, momentum = bank.grads_RD[rows], bank.moments_RD["momentum"][rows]
            norms.append(gradient.norm())
            momentum.mul_(resident.spec.beta1).add_(gradient)
            bank.weights_RD[rows].add_(momentum, alpha=-resident.spec.learning_rate_at(resident.step))
            bank.refresh(resident.slot)
            gradient.zero_()
        return torch.stack(norms)


TRIALS = [
    TrialSpec(
        trial_id=trial_id,
        seed=10 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
        learning_rate=0.1,
        batch_size=batch_size,
        num_steps=STEPS,
        warmup_ratio=0.3,
    )
    for trial_id, (r, batch_size) in enumerate([(4, 2), (17, 3), (8, 1)])
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory)
    return load_decoder(directory, dtype="float32", device="cpu")


@pytest.fixture
def sgd(monkeypatch: pytest.MonkeyPatch) -> Optimizer:
    monkeypatch.setitem(OPTIMIZERS, "sgd", Sgd())
    return OPTIMIZERS["sgd"]


def executor_for(decoder: Decoder, optimizer: Optimizer) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=ROWS,
        settings=ExecutorSettings(num_slots=3, num_rank_rows=96, token_budget=60, evaluation_token_budget=60),
        optimizer=optimizer,
    )


def plain_loop(decoder: Decoder, spec: TrialSpec) -> tuple[Tensor, Tensor]:
    """Train one trial with ``torch.optim.SGD``; return its weights and momentum."""
    bank = AdapterBank(executor_for(decoder, Sgd()).bank.layout, num_slots=1, num_rank_rows=spec.adapter.r)
    weights = torch.nn.Parameter(initial_weights(bank.layout, spec.adapter, seed=spec.seed))
    slot = bank.insert(spec.adapter, AdapterState(weights=weights.detach()))
    resident = Resident(spec=spec, slot=slot, step=0, order=spec.order(len(ROWS)), rows=ROWS)
    optimizer = torch.optim.SGD([weights], lr=spec.learning_rate, momentum=spec.beta1)
    for step in range(spec.num_steps):
        rows = bank.rank_rows(slot)
        bank.weights_RD[rows] = weights.detach()
        bank.grads_RD.zero_()
        batch = pack(samples_of(resident, step=step), num_slots=1)
        losses_T = token_losses(decoder, batch, bank.context(batch.segments))
        divisors = {slot: batch.trained_rows_M.shape[0]}
        losses_T.backward(token_weights(batch, divisors=divisors, dtype=losses_T.dtype))
        weights.grad = bank.grads_RD[rows].clone()
        optimizer.param_groups[0]["lr"] = spec.learning_rate_at(step)
        optimizer.step()
    return weights.detach(), optimizer.state[weights]["momentum_buffer"]


def test_packed_parked_checkpointed_and_resumed_it_has_the_bits_of_a_plain_loop(
    decoder: Decoder, sgd: Optimizer, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    executor = executor_for(decoder, sgd)
    store = TrialStateStore(directory, memory_budget_bytes=1 << 30, optimizer=sgd)
    for spec in TRIALS:
        executor.load(spec)
    executor.step()
    # one trial is parked while the others step, and comes back into another slot
    store.put_state(0, executor.unload(0))
    executor.step()
    executor.load(TRIALS[0], store.state(0))
    executor.step([0])
    for spec in TRIALS:
        store.put_state(spec.trial_id, executor.state(spec.trial_id))
    checksums = store.flush()

    resumed = executor_for(decoder, sgd)
    restored = TrialStateStore(directory, memory_budget_bytes=1 << 30, optimizer=sgd)
    restored.restore(checksums)
    for spec in reversed(TRIALS):
        resumed.load(spec, restored.state(spec.trial_id))
    for _ in range(STEPS - 2):
        resumed.step()
    for spec in TRIALS:
        weights, momentum = plain_loop(decoder, spec)
        found = resumed.state(spec.trial_id)
        assert found.step == STEPS
        assert found.adapter.tensors.keys() == {"weights", "momentum"}
        assert torch.equal(found.adapter.weights, weights)
        assert torch.equal(found.adapter.moments["momentum"], momentum)


def test_sizes_ask_the_optimizer_for_its_bytes(decoder: Decoder, sgd: Optimizer) -> None:
    for optimizer, tensors in ((sgd, 3), (DEFAULT_OPTIMIZER, 4)):
        bank = executor_for(decoder, optimizer).bank
        row_bytes = rank_row_bytes(bank.layout, has_compute_copy=False, optimizer=optimizer)
        assert row_bytes == bank.layout.width * 4 * tensors
        assert bank.num_bytes == bank.num_rank_rows * row_bytes
    assert moment_bytes(DEFAULT_OPTIMIZER, width=10, weights_dtype=torch.float64) == 160
