"""A model that transformers computes: its logits, training, bits and gradients as PEFT's and as a native model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.core.errors import InputError
from cohort.models.attention import PackedAttention
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare, executor_of, rows_of, spec_of
from tests.training.invariants.variants import VARIANTS

# Fused projections, transposed linears and learned positions, experts, sinks, windows and norms after the blocks,
# ALiBi, and a recurrent convolution.
USUAL = ("gpt_neox", "gpt2", "olmoe", "gpt_oss", "gemma4_text", "bloom", "lfm2")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("seed_oss", tmp_path_factory.mktemp("seed_oss"))


@pytest.fixture(scope="module")
def decoder(checkpoint: Path) -> Decoder:
    return load_decoder(checkpoint)


@pytest.mark.parametrize("name", USUAL)
def test_logits_losses_and_weights_are_those_of_transformers_and_peft(tmp_path: Path, name: str) -> None:
    found = compare(save_tiny(name, tmp_path))
    assert found.way == "bridged"
    assert found.logits <= 1e-5
    assert found.losses <= 1e-5
    assert found.weights <= 1e-5
    assert found.loaded <= 1e-5
    assert found.is_isolated


def trained(executor: Executor, trial_id: int, *, steps: int = 4) -> tuple[list[float], Tensor]:
    losses = []
    for _ in range(steps):
        events = {event.trial_id: event.loss for event in executor.step()}
        losses.append(events[trial_id])
    return losses, executor.weights(trial_id)


@pytest.mark.parametrize("name", ["gpt2", "olmoe", "lfm2"])
def test_a_trial_has_the_same_bits_alone_and_with_neighbours(tmp_path: Path, name: str) -> None:
    decoder, rows, spec = load_decoder(save_tiny(name, tmp_path)), rows_of(12), spec_of()
    spec = replace(spec, adapter=replace(spec.adapter, lora_dropout=0.2))
    alone = executor_of(decoder, rows)
    alone.load(spec)
    losses, weights = trained(alone, 0)
    together = executor_of(decoder, rows, token_budget=37)
    # before it in the stream, of another rank, and diverging
    together.load(replace(spec, trial_id=1, seed=5, learning_rate=1e6, adapter=replace(spec.adapter, r=7)))
    together.load(spec)
    their_losses, their_weights = trained(together, 0)
    assert losses == their_losses
    assert torch.equal(weights, their_weights)


def test_recomputed_layers_give_the_same_bits(decoder: Decoder) -> None:
    rows, spec = rows_of(12), spec_of()
    results = []
    for mode in ("never", "always"):
        executor = executor_of(decoder, rows, gradient_checkpointing=mode)
        executor.load(spec)
        results.append(trained(executor, 0))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", ["dora", "pissa", "vera_dropout", "patterns", "bd", "olora"])
def test_variants_train_and_end_lower(decoder: Decoder, name: str) -> None:
    rows = rows_of(12)
    executor = executor_of(decoder, rows)
    executor.load(replace(spec_of(), adapter=VARIANTS[name], batch_size=12, num_steps=4))
    losses, _ = trained(executor, 0, steps=4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("weight_format", ["int8", "nf4", "fp8"])
def test_quantised_linears_are_those_of_the_format(checkpoint: Path, decoder: Decoder, weight_format: str) -> None:
    quantised = load_decoder(checkpoint, weight_format=weight_format)
    name = next(iter(decoder.linears))
    plain, found = decoder.weight_of(name), quantised.weight_of(name)
    assert 0 < float((plain - found).norm() / plain.norm()) < (0.02 if weight_format == "int8" else 0.2)
    assert quantised.num_bytes < decoder.num_bytes


def test_a_resumed_trial_goes_on_bit_for_bit(decoder: Decoder) -> None:
    rows, spec = rows_of(12), spec_of()
    whole = executor_of(decoder, rows)
    whole.load(spec)
    _, weights = trained(whole, 0)
    first, second = executor_of(decoder, rows), executor_of(decoder, rows)
    first.load(spec)
    trained(first, 0, steps=2)
    second.load(spec, first.unload(0))
    assert torch.equal(trained(second, 0, steps=2)[1], weights)


def test_rows_of_no_sequence_are_zeros(decoder: Decoder) -> None:
    tokens_T = torch.randint(3, 90, (24,))
    hidden_TD = decoder.forward(
        tokens_T, positions_T=torch.arange(24), attention=PackedAttention((0, 5, 5, 12)), lora=None
    )
    assert not hidden_TD[12:].any()
    assert hidden_TD[:12].any(dim=1).all()


def test_an_adapter_on_a_linear_that_no_row_passes_is_refused(checkpoint: Path) -> None:
    decoder = load_decoder(checkpoint)
    assert isinstance(decoder, BridgedDecoder)
    name = next(iter(decoder.linears))
    decoder.unadaptable[name] = "whose module does not call it"
    executor = Executor(
        decoder,
        target_linears={name: decoder.linears[name]},
        train_rows=rows_of(4),
        settings=executor_of(decoder, rows_of(4)).settings,
    )
    executor.load(spec_of())
    with pytest.raises(InputError, match=r"target_modules: found model\.layers\.0.*does not call it"):
        executor.step()


def test_exact_numerics_are_refused(decoder: Decoder) -> None:
    with pytest.raises(InputError, match="SeedOssForCausalLM, which transformers computes"):
        decoder.use_exact_products()
