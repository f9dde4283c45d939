"""Models of clients come and go with their whole state, and are refused where they never fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.training.client_training.client_models import UnknownModelError
from cohort.training.client_training.request_executor import AdamParameters, PassRequest
from tests.training.client_training.client_data import a_loss, open_executor, random_datum
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_llama(directory)
    return directory


def test_a_state_goes_on_where_it_was_taken(model: Path) -> None:
    executor, loss = open_executor(model), a_loss("ppo")
    rng, spec = np.random.default_rng(4), AdapterSpec(r=4, lora_alpha=32.0)
    executor.models.create("one", spec, seed=1, state=None)
    before, after = ((random_datum(rng, loss),) for _ in range(2))
    executor.run([PassRequest(model_id="one", data=before, loss=loss, trains=True)])
    executor.step([("one", AdamParameters(learning_rate=1e-2))])
    executor.models.create("two", spec, seed=9, state=executor.models.state("one"))
    for name in ("one", "two"):
        executor.run([PassRequest(model_id=name, data=after, loss=loss, trains=True)])
        executor.step([(name, AdamParameters(learning_rate=1e-2))])
    one, two = executor.models.state("one"), executor.models.state("two")
    assert (one.step, two.step) == (2, 2)
    assert all(torch.equal(one.adapter.tensors[name], two.adapter.tensors[name]) for name in one.adapter.tensors)


def test_models_that_are_unknown_or_never_fit_are_refused(model: Path) -> None:
    executor = open_executor(model, num_rank_rows=32)
    with pytest.raises(InputError, match=r"lora_config.rank: found 40; allowed: 1 to 32"):
        executor.models.create("m", AdapterSpec(r=40, lora_alpha=32.0), seed=1, state=None)
    with pytest.raises(UnknownModelError, match="there is no model 'm'"):
        executor.step([("m", AdamParameters())])


def test_weights_are_a_copy_of_a_model_wherever_it_is(model: Path) -> None:
    executor, loss = open_executor(model, num_slots=1), a_loss("cross_entropy")
    for name in ("one", "two"):
        executor.models.create(name, AdapterSpec(r=4, lora_alpha=32.0), seed=1, state=None)
    parked = executor.models.weights("one", dtype=torch.float64)
    assert torch.equal(parked.float(), executor.models.state("one").adapter.weights)
    data = (random_datum(np.random.default_rng(2), loss),)
    executor.run([PassRequest(model_id="one", data=data, loss=loss, trains=True)])
    taken = executor.models.weights("one", dtype=torch.float32)
    assert torch.equal(taken, parked.float())
    executor.step([("one", AdamParameters(learning_rate=1e-2))])
    # the step changed the model and not what was taken of it
    assert torch.equal(taken, parked.float())
    assert not torch.equal(taken, executor.models.weights("one", dtype=torch.float32))
    with pytest.raises(UnknownModelError):
        executor.models.weights("three", dtype=torch.float32)
