"""A decoder whose layers pass through a ring has the bits of one whose layers are resident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.core.memory_records import GradientCheckpointing
from cohort.kernels.packed_linear.frozen_product import can_stream
from cohort.models.decoder import Decoder
from cohort.models.streaming.host_source import HostSource
from cohort.models.streaming.layer_streaming import ALIGNMENT, LayerStreaming
from cohort.models.streaming.weight_ring import NUM_BUFFERS
from cohort.models.weight_formats import WEIGHT_FORMATS, WeightFormat
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama, save_qwen2

NUM_LAYERS = 6


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save = {"llama": save_llama, "qwen2": save_qwen2}[request.param]
    save(folder, num_layers=NUM_LAYERS)
    return folder


def streaming_of(layers: tuple[int, ...]) -> LayerStreaming:
    device = torch.device("cpu")
    return LayerStreaming(layers, source=HostSource(device), device=device)


def executor_of(decoder: Decoder, mode: GradientCheckpointing, *, budget: int) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=random_rows(12),
        settings=ExecutorSettings(
            num_slots=2,
            num_rank_rows=32,
            token_budget=budget,
            evaluation_token_budget=budget,
            gradient_checkpointing=mode,
        ),
    )


def spec_of(trial_id: int, *, num_steps: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=8.0, lora_dropout=0.1 * trial_id),
        learning_rate=1e-2,
        batch_size=3,
        num_steps=num_steps,
        max_grad_norm=1.0,
    )


def test_steps_have_the_bits_of_resident_layers(model: Path) -> None:
    is_llama = model.name.startswith("llama")
    mode = GradientCheckpointing.NEVER if is_llama else GradientCheckpointing.ALWAYS
    layers = tuple(range(NUM_LAYERS)) if is_llama else (1, 3, 5)
    resident = executor_of(load_decoder(model), mode, budget=4096)
    streamed = executor_of(load_decoder(model, streaming=streaming_of(layers)), mode, budget=4096)
    ring = streamed.decoder.ring
    assert ring is not None
    for executor in (resident, streamed):
        for trial_id in range(2):
            executor.load(spec_of(trial_id, num_steps=6))
    rows = random_rows(5, seed=3)
    for step in range(6):
        before = ring.num_fetches
        assert streamed.step() == resident.step()
        if step:
            assert ring.num_fetches - before == 2 * (len(layers) - NUM_BUFFERS)
        else:
            assert ring.num_fetches == 2 * len(layers) - NUM_BUFFERS
    for trial_id in range(2):
        ours, theirs = streamed.state(trial_id).adapter, resident.state(trial_id).adapter
        assert torch.equal(ours.weights, theirs.weights)
        assert all(torch.equal(ours.moments[name], theirs.moments[name]) for name in theirs.moments)
    evaluate: dict[str, Any] = {"rows": rows, "row_ids": range(5)}
    assert streamed.evaluate((0, 1), **evaluate) == resident.evaluate((0, 1), **evaluate)
    assert streamed.evaluate_base(**evaluate) == resident.evaluate_base(**evaluate)


def test_gradients_of_one_pass_and_of_passes_that_break_off(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = executor_of(load_decoder(model), GradientCheckpointing.NEVER, budget=60)
    streamed = executor_of(
        load_decoder(model, streaming=streaming_of((0, 1, 2, 4, 5))), GradientCheckpointing.NEVER, budget=60
    )
    for executor in (resident, streamed):
        for trial_id in range(2):
            executor.load(spec_of(trial_id, num_steps=3))
    layer = streamed.decoder.layers[3]
    attend = layer._attend

    def failing(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(layer, "_attend", failing)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        streamed.step()
    monkeypatch.setattr(layer, "_attend", attend)
    gradients: list[torch.Tensor] = []
    for executor in (resident, streamed):
        update = executor.optimizer.update

        def noting(bank: Any, residents: Any, update: Any = update) -> Any:
            gradients.append(bank.grads_RD.clone())
            return update(bank, residents)

        optimizer: Any = type("Noting", (), {"update": staticmethod(noting)})()
        executor.optimizer = optimizer
        executor.step()
    assert torch.equal(gradients[0], gradients[1])
    assert gradients[0].any()


def test_too_few_layers_to_save_memory() -> None:
    with pytest.raises(ValueError, match="saves no memory"):
        streaming_of((0, 1))


def test_weights_stand_at_fixed_aligned_places_and_are_counted(model: Path) -> None:
    resident, streamed = load_decoder(model), load_decoder(model, streaming=streaming_of(tuple(range(NUM_LAYERS))))
    addresses = [
        [linear.frozen.streamed_weights[0].data_ptr() for linear in layer.linears if can_stream(linear.frozen)]
        for layer in streamed.layers
    ]
    assert addresses[0] == addresses[2] == addresses[4]
    assert addresses[1] == addresses[3] == addresses[5]
    first = addresses[0][0]
    assert all((address - first) % ALIGNMENT == 0 for address in addresses[0])
    assert streamed.ring is not None
    assert streamed.num_bytes == resident.num_bytes + streamed.ring.num_bytes


@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS.values(), ids=list(WEIGHT_FORMATS))
def test_products_of_every_format_can_be_moved(weight_format: WeightFormat) -> None:
    dtype = weight_format.compute_dtypes[0]
    product = weight_format.freeze(torch.randn(64, 64, dtype=dtype), None)
    assert can_stream(product), f"{weight_format.name} cannot be streamed"
    x = torch.randn(3, 64, dtype=dtype)
    before = product.forward(x), product.grad_input(x)
    product.place_weights([tensor.clone() for tensor in product.streamed_weights])
    assert torch.equal(product.forward(x), before[0])
    assert torch.equal(product.grad_input(x), before[1])


def test_a_format_that_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(InputError, match="a format of weights that stays on the GPU"):
        streaming_of((0, 1, 2)).take(0, {"layers.0.qkv": object()})  # type: ignore[dict-item]
