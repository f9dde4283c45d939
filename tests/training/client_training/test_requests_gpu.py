"""Calls of clients on a GPU: the numbers of a CPU, and in exact numerics the bits of a model alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.training.client_training.request_executor import AdamParameters, PassRequest, RequestExecutor
from cohort.training.client_training.token_passes import DatumResult
from tests.training.client_training.client_data import NAMES, a_loss, open_executor, random_datum
from tests.training.client_training.test_request_executor import random_program, run_together
from tests.training.small_models import save_llama

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_llama(directory, hidden_size=96)
    return directory


def trained(executor: RequestExecutor, name: str, *, beside: bool = False) -> tuple[list[DatumResult], Tensor]:
    """Return what six calls of a model give and its weights behind three steps, perhaps next to another model."""
    loss, rng = a_loss(name), np.random.default_rng(5)
    start = 0.02 * torch.randn(8, executor.layout.width, generator=torch.Generator().manual_seed(1))
    executor.models.create("m", AdapterSpec(r=8, lora_alpha=16.0), seed=1, state=None)
    state = executor.models.state("m")
    state.adapter.weights.copy_(start)
    executor.models.load("m", state)
    executor.models.create("other", AdapterSpec(r=16, lora_alpha=32.0), seed=2, state=None)
    results = []
    for _ in range(3):
        for _ in range(2):
            data = tuple(random_datum(rng, loss) for _ in range(3))
            requests = [PassRequest(model_id="m", data=data, loss=loss, trains=True)]
            if beside:
                requests.append(PassRequest(model_id="other", data=data[:2], loss=loss, trains=True))
            results += executor.run(requests)[0]
        steps = [("m", AdamParameters(learning_rate=1e-3, grad_clip_norm=0.5, eps=1e-6))]
        executor.step([*steps, ("other", AdamParameters(learning_rate=1e3))] if beside else steps)
    return results, executor.models.state("m").adapter.weights


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_gives_the_numbers_of_a_cpu(model: Path, name: str) -> None:
    expected, weights = trained(open_executor(model), name)
    found, own = trained(open_executor(model, device="cuda"), name, beside=True)
    for one, other in zip(expected, found, strict=True):
        # float32 products in another order, steps of AdamW on top
        np.testing.assert_allclose(other.logps, one.logps, atol=2e-3)
        assert other.loss == pytest.approx(one.loss, rel=2e-3, abs=2e-3 * one.terms.size)
    start = 0.02 * torch.randn(8, own.shape[1], generator=torch.Generator().manual_seed(1))
    assert (own.cpu() - weights).norm() < 0.05 * (weights - start).norm()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_in_exact_numerics_random_programs_have_the_bits_of_each_alone(model: Path, dtype: str, seed: int) -> None:
    def opened(**sizes: int) -> RequestExecutor:
        return open_executor(model, dtype=dtype, device="cuda", numerics=Numerics.EXACT, **sizes)

    # room for three of the five: models are parked in the middle of their steps
    executor = opened(num_slots=3, num_rank_rows=96, token_budget=96)
    numbers = range(100 * seed, 100 * seed + 5)
    together = [random_program(number, executor) for number in numbers]
    run_together(executor, together, seed=seed)
    alone = [random_program(number, executor) for number in numbers]
    for program in alone:
        run_together(opened(), [program], seed=seed + 1)
    for one, other in zip(alone, together, strict=True):
        assert one.given == other.given, one.model_id
