"""Trials with an embedding and a head of their own: every optimizer, copies that products read, and the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import SlotSample, pack
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.optimizers import optimizer_for
from cohort.training.reference.reference_adapter import read_reference_adapter
from cohort.training.reference.reference_logps import answer_log_probs
from cohort.training.token_losses import token_losses
from cohort.training.trial import TrialSpec
from tests.training.invariants.variants import saved_in_qwen2
from tests.training.small_models import random_rows, save_qwen2

ROWS = random_rows(20, seed=2)
BOTH = saved_in_qwen2(EMBEDDING, HEAD)
OPTIMIZERS = ("adamw", "adamw_8bit", "lion", "sgd")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    save_qwen2(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(directory: Path) -> Decoder:
    return load_decoder(directory, dtype="float32", device="cpu")


def trial(trial_id: int, *, optim: str, saved: bool = True, max_grad_norm: float = 1.0) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=8, saved=BOTH if saved else None),
        learning_rate=1e-3,
        batch_size=2,
        num_steps=3,
        optim=optim,
        max_grad_norm=max_grad_norm,
    )


def executor_for(decoder: Decoder, *, optim: str = "adamw", token_budget: int = 1000, slots: int = 3) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=ROWS,
        settings=ExecutorSettings(
            num_slots=slots, num_rank_rows=32 * slots, token_budget=token_budget, evaluation_token_budget=token_budget
        ),
        optimizer=optimizer_for((optim,)),
    )


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_every_optimizer_steps_the_tables_alone_and_in_a_pack_alike(decoder: Decoder, optim: str) -> None:
    subject = trial(1, optim=optim)
    alone = executor_for(decoder, optim=optim)
    alone.load(subject)
    packed = executor_for(decoder, optim=optim, token_budget=40)
    for spec in (trial(0, optim=optim), subject, trial(2, optim=optim, saved=False)):
        packed.load(spec)
    for _ in range(3):
        expected = alone.step()
        assert [done for done in packed.step() if done.trial_id == 1] == list(expected)
    assert torch.equal(packed.weights(1), alone.weights(1))
    rows = alone.weights(1)[subject.adapter.saved_row :].contiguous()
    for name in BOTH.names:
        assert not torch.equal(BOTH.table(rows, name), decoder.weight_of(SAVED_PATHS[name]))


@pytest.mark.parametrize("optim", ["adamw", "lion"])
def test_products_read_the_tables_as_they_were_stepped(decoder: Decoder, optim: str) -> None:
    """Also where they read a copy, as alphas of modules make one on a CPU."""
    executor = executor_for(decoder, optim=optim)
    spec = trial(0, optim=optim)
    executor.load(replace(spec, adapter=replace(spec.adapter, alpha_pattern=(("v_proj", 3.0),))))
    executor.step()
    bank = executor.bank
    assert bank.compute_RD is not bank.weights_RD
    rows = slice(spec.adapter.saved_row, spec.adapter.num_rows)
    assert torch.equal(bank.compute_RD[rows], bank.weights_RD[rows])
    assert not bank.grads_RD[rows].any()


def test_the_norm_that_is_clipped_is_that_of_adapter_and_tables(decoder: Decoder) -> None:
    norms = []
    for saved in (False, True):
        executor = executor_for(decoder)
        executor.load(trial(0, optim="adamw", saved=saved))
        norms.append(executor.step()[0].grad_norm)
    assert norms[1] > 1.5 * norms[0]


def test_only_the_slot_s_own_rows_reach_its_tables(decoder: Decoder) -> None:
    """Gradients of a stream with neighbours and an empty slot, against a stream without them."""
    layout = AdapterLayout(dict(decoder.linears))
    found: list[Tensor] = []
    for slots in ([0, 0, 1, 2, 2], [0, 0]):
        executor = executor_for(decoder)
        bank: AdapterBank = executor.bank
        for number in range(3):
            executor.load(trial(number, optim="adamw", saved=number != 1))
        entries = [SlotSample(slot=slot, sample=ROWS.sample(index)) for index, slot in enumerate(slots)]
        batch = pack(entries, num_slots=3)
        token_losses(decoder, batch, bank.context(batch.segments)).sum().backward()
        own = bank.context(batch.segments).saved
        assert [tables.slot for tables in own] == [0, 2]
        found += [own[0].gradients[name].clone() for name in BOTH.names]
        trained = {slot for slot in slots if slot != 1}
        for tables in own:
            assert all(bool(sink.any()) == (tables.slot in trained) for sink in tables.gradients.values())
        used = {int(token) for index, slot in enumerate(slots) if slot == 0 for token in ROWS.sample(index).tokens}
        assert {row for row in range(96) if bool(own[0].gradients[EMBEDDING][row].any())} <= used
    assert layout.width == BOTH.width
    assert all(torch.equal(packed, alone) for packed, alone in zip(found[:2], found[2:], strict=True))


def test_a_slot_is_zero_once_its_trial_has_left(decoder: Decoder) -> None:
    executor = executor_for(decoder, slots=2)
    executor.load(trial(0, optim="adamw"))
    executor.load(trial(1, optim="adamw"))
    executor.step()
    state = executor.unload(0)
    assert not executor.bank.weights_RD[:32].any()
    assert executor.bank.has_saved_modules
    executor.load(trial(0, optim="adamw"), state)
    assert torch.equal(executor.weights(0), state.adapter.weights)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_a_reference_answers_with_its_own_tables(directory: Path, decoder: Decoder, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=[HEAD, EMBEDDING], task_type="CAUSAL_LM")
    tuned = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    tuned.save_pretrained(tmp_path)
    samples = [ROWS.sample(index) for index in range(4)]
    found = answer_log_probs(
        decoder,
        samples,
        token_budget=1000,
        too_large=lambda entry, message: MemoryError(message),
        adapter=read_reference_adapter(tmp_path, decoder.config),
    )
    for sample, logp in zip(samples, found, strict=True):
        tokens = torch.from_numpy(sample.tokens.astype("int64"))
        with torch.no_grad():
            log_p = tuned(tokens[None]).logits[0].log_softmax(-1)
        positions = [place for place in range(1, len(tokens)) if sample.trained[place]]
        expected = sum(float(log_p[place - 1, tokens[place]]) for place in positions)
        assert logp == pytest.approx(expected, rel=1e-5)
