"""Every objective trains packed as it does alone; one that is defined here alone is compared with a plain loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.events import StepDone
from cohort.core.memory_records import GradientCheckpointing
from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample, TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.memory_probe import MemoryProbe, ProbePass
from cohort.training.objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from cohort.training.objectives.kinds.sft import SupervisedFineTuning
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.kinds.adamw import AdamW
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.passes import Passes
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec
from tests.training.small_models import compared_rows, save_llama

STEPS = 3
NUM_PAIRS = 10
ROWS = compared_rows(2 * NUM_PAIRS, seed=8, longest=24)
# of a frozen reference model: log p(chosen) - log p(rejected), in nats; and 1 / (2 beta)
REFERENCE, MARGIN = 0.3, 0.5


class Ipo(Objective):
    """The squared distance of each pair's margin to the one it should have (Azar et al. 2023, eq. 17)."""

    group_size = 2

    def terms(self, groups: Groups) -> Tensor:
        return (self._margins(groups) - MARGIN).square()

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        return {"accuracy": (self._margins(groups) > 0).float()}

    def _margins(self, groups: Groups) -> Tensor:
        chosen, rejected = groups.answer_losses_GS.unbind(1)
        return rejected - chosen - REFERENCE


class RecordedAdamW(AdamW):
    """AdamW that keeps the gradients it was given, by trial."""

    def __init__(self) -> None:
        self.gradients: dict[int, list[Tensor]] = {}

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        for resident in residents:
            gradient_rD = bank.grads_RD[bank.rank_rows(resident.slot)].clone()
            self.gradients.setdefault(resident.spec.trial_id, []).append(gradient_rD)
        return super().update(bank, residents)


TRIALS = [
    TrialSpec(
        trial_id=trial_id,
        seed=10 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout),
        learning_rate=1e-2,
        batch_size=batch_size,
        num_steps=STEPS,
    )
    for trial_id, (r, batch_size, dropout) in enumerate([(4, 3, 0.0), (17, 1, 0.0), (8, 4, 0.3)])
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("model")
    save_llama(found, num_layers=1)
    return found


@pytest.fixture(scope="module")
def decoder(directory: Path) -> Decoder:
    return load_decoder(directory, dtype="float32", device="cpu")


def with_objectives(*objectives: Objective) -> list[TrialSpec]:
    """Return the trials with one objective each, repeated where there are fewer."""
    return [replace(spec, objective=objectives[place % len(objectives)]) for place, spec in enumerate(TRIALS)]


# of each kind, with numbers that differ between trials of one pack
DPO, KTO = OBJECTIVES["dpo"], OBJECTIVES["kto"]
EVERY_OBJECTIVE = {
    "ipo defined here": with_objectives(Ipo()),
    "dpo": with_objectives(*(DPO.with_values({"beta": b, "label_smoothing": s}) for b, s in ((0.05, 0), (0.3, 0.1)))),
    "dpo by loss type": with_objectives(*(DPO.with_values({"loss_type": kind}) for kind in ("hinge", "ipo", "robust"))),
    "orpo": with_objectives(*(OBJECTIVES["orpo"].with_values({"beta": beta}) for beta in (0.1, 1.0))),
    "cpo": with_objectives(*(OBJECTIVES["cpo"].with_values({"cpo_alpha": alpha}) for alpha in (1.0, 0.0))),
    "simpo": with_objectives(*(OBJECTIVES["simpo"].with_values({"beta": 2.0, "simpo_gamma": g}) for g in (0.5, 1.4))),
    "kto": with_objectives(
        *(KTO.with_values({"beta": beta}) for beta in (0.1, 0.5)), KTO.with_values({"loss_type": "apo_zero_unpaired"})
    ),
    "all in one pack": with_objectives(DPO, DEFAULT_OBJECTIVE, KTO),
}
every_objective = pytest.mark.parametrize("trials", EVERY_OBJECTIVE.values(), ids=EVERY_OBJECTIVE)


def executor_for(
    decoder: Decoder,
    trials: Sequence[TrialSpec],
    *,
    token_budget: int = 70,
    rows: TokenisedRows = ROWS,
    mode: GradientCheckpointing = GradientCheckpointing.AUTO,
    optimizer: Optimizer = DEFAULT_OPTIMIZER,
) -> Executor:
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=4,
            num_rank_rows=96,
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            gradient_checkpointing=mode,
        ),
        dtype=decoder.dtype,
        optimizer=optimizer,
    )
    for spec in trials:
        executor.load(spec)
    return executor


def outcome(executor: Executor, trial_id: int) -> tuple[list[StepDone], Tensor, EvaluationLoss]:
    events = [event for _ in range(STEPS) for event in executor.step() if event.trial_id == trial_id]
    evaluated = executor.evaluate([trial_id], rows=executor.train_rows, row_ids=range(1, NUM_PAIRS))
    return events, executor.weights(trial_id), evaluated[trial_id]


def log_likelihood(model: torch.nn.Module, sample: Sample) -> Tensor:
    tokens = torch.from_numpy(sample.tokens.astype("int64"))
    log_p: Tensor = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1)
    return (log_p.gather(1, tokens[1:, None])[:, 0] * torch.from_numpy(sample.trained[1:])).sum()


def pair_margin(model: torch.nn.Module, pair: int) -> Tensor:
    chosen, rejected = (log_likelihood(model, ROWS.sample(2 * pair + place)) for place in (0, 1))
    return chosen - rejected - REFERENCE


def plain_loop(directory: Path, spec: TrialSpec, executor: Executor) -> tuple[list[float], list[Tensor], float, float]:
    """Train with PEFT in float64, pair by pair; return losses, gradients in the bank's layout, and an evaluation."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    r, alpha = spec.adapter.r, int(spec.adapter.lora_alpha)
    config = LoraConfig(r=r, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config, autocast_adapter_dtype=False)
    parameters = dict(model.named_parameters())
    columns = executor.bank.layout.columns
    start = initial_weights(executor.bank.layout, spec.adapter, seed=spec.seed, dtype=torch.float64)
    own = {
        name: [parameters[f"base_model.model.{name}.lora_{side}.default.weight"] for side in "AB"] for name in columns
    }
    with torch.no_grad():
        for name, (a, b) in own.items():
            a.copy_(start[:, columns[name].a])
            b.copy_(start[:, columns[name].b].T)
    flat = [parameter for pair in own.values() for parameter in pair]
    optimizer = torch.optim.AdamW(flat, lr=spec.learning_rate, weight_decay=spec.weight_decay)
    order, losses, gradients = spec.order(NUM_PAIRS), [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        pairs = order.batch(step)
        loss = torch.stack([(pair_margin(model, pair) - MARGIN) ** 2 for pair in pairs]).mean()
        loss.backward()
        losses.append(loss.item())
        gradient = torch.zeros_like(start)
        for name, (a, b) in own.items():
            assert a.grad is not None
            assert b.grad is not None
            gradient[:, columns[name].a], gradient[:, columns[name].b] = a.grad, b.grad.T
        gradients.append(gradient)
        torch.nn.utils.clip_grad_norm_(flat, spec.max_grad_norm)
        optimizer.step()
    with torch.no_grad():
        margins = torch.stack([pair_margin(model, pair) for pair in range(1, NUM_PAIRS)])
    return losses, gradients, float((margins - MARGIN).square().mean()), float((margins > 0).double().mean())


def test_losses_and_gradients_are_those_of_a_plain_loop_over_the_pairs(directory: Path) -> None:
    optimizer = RecordedAdamW()
    decoder = load_decoder(directory, dtype="float64", device="cpu")
    executor = executor_for(decoder, with_objectives(Ipo()), optimizer=optimizer)
    events = [event for _ in range(STEPS) for event in executor.step()]
    # dropout draws differ from PEFT's
    for spec in TRIALS[:2]:
        losses, gradients, evaluated, accuracy = plain_loop(directory, spec, executor)
        mine = [event for event in events if event.trial_id == spec.trial_id]
        assert [event.loss for event in mine] == pytest.approx(losses, rel=1e-9)
        for found, expected in zip(optimizer.gradients[spec.trial_id], gradients, strict=True):
            assert torch.linalg.vector_norm(found - expected) <= 1e-9 * torch.linalg.vector_norm(expected)
        norms = [float(torch.linalg.vector_norm(gradient)) for gradient in gradients]
        assert [event.grad_norm for event in mine] == pytest.approx(norms, rel=1e-9)
        evaluation = executor.evaluate([spec.trial_id], rows=ROWS, row_ids=range(1, NUM_PAIRS))[spec.trial_id]
        assert evaluation.loss == pytest.approx(evaluated, rel=1e-9)
        assert evaluation.metrics == {"accuracy": pytest.approx(accuracy)}


@every_objective
def test_alone_and_packed_have_the_same_bits_under_any_split(decoder: Decoder, trials: list[TrialSpec]) -> None:
    packs = [
        executor_for(decoder, trials, token_budget=1),
        executor_for(decoder, trials, token_budget=10_000, mode=GradientCheckpointing.ALWAYS),
    ]
    together = [[event for _ in range(STEPS) for event in executor.step()] for executor in packs]
    for spec in trials:
        events, weights, evaluation = outcome(executor_for(decoder, [spec], token_budget=10_000), spec.trial_id)
        assert all(math.isfinite(event.loss) for event in events)
        for executor, found in zip(packs, together, strict=True):
            assert [event for event in found if event.trial_id == spec.trial_id] == events
            assert torch.equal(executor.weights(spec.trial_id), weights)
            evaluated = executor.evaluate([spec.trial_id], rows=ROWS, row_ids=range(1, NUM_PAIRS))
            assert evaluated[spec.trial_id] == evaluation


@every_objective
def test_a_diverged_neighbour_leaves_the_others_bits_alone(decoder: Decoder, trials: list[TrialSpec]) -> None:
    expected = outcome(executor_for(decoder, trials[1:]), 1)
    executor = executor_for(decoder, trials)
    executor.bank.weights_RD[executor.bank.rank_rows(executor.slot_of(0))] = float("nan")
    found = outcome(executor, 1)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


@every_objective
def test_a_parked_trial_goes_on_where_it_was(decoder: Decoder, trials: list[TrialSpec]) -> None:
    expected = outcome(executor_for(decoder, trials), 2)
    executor = executor_for(decoder, trials)
    first = [event for _ in range(1) for event in executor.step() if event.trial_id == 2]
    state = executor.unload(2)
    executor.step()
    executor.load(trials[2], state)
    last = [event for _ in range(STEPS - 1) for event in executor.step() if event.trial_id == 2]
    assert first + last == expected[0]
    assert torch.equal(executor.weights(2), expected[1])


def test_no_micro_batch_separates_a_pair(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[tuple[int, int]]] = []
    run = Passes.train

    def watched(self: Passes, entries: Sequence[SlotSample], *rest: object, **options: object) -> Tensor:
        passes.append([(entry.slot, entry.sample.sample_id) for entry in entries])
        return run(self, entries, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Passes, "train", watched)
    executor = executor_for(decoder, with_objectives(Ipo()))
    executor.step()
    assert len(passes) > 1
    assert sum(len(entries) for entries in passes) == 2 * sum(spec.batch_size for spec in TRIALS)
    for entries in passes:
        for (slot, chosen), (same_slot, rejected) in zip(entries[::2], entries[1::2], strict=True):
            assert (same_slot, rejected) == (slot, chosen + 1)
            assert chosen % 2 == 0


def test_weights_known_beforehand_are_a_shortcut_to_the_same_bits(decoder: Decoder) -> None:
    """Of supervised fine-tuning; the terms of any objective can be summed, weighted and differentiated as IPO's are."""

    class WithoutShortcut(SupervisedFineTuning):
        sums_tokens = False

    # rows that are not divided: the pieces of others are summed apart
    rows = replace(ROWS, answer_starts=np.empty(0, dtype=np.int64))
    expected = outcome(executor_for(decoder, with_objectives(DEFAULT_OBJECTIVE), rows=rows), 2)
    found = outcome(executor_for(decoder, with_objectives(WithoutShortcut()), rows=rows), 2)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])
    assert found[2] == expected[2]


def test_the_memory_probe_runs_whole_pairs(decoder: Decoder) -> None:
    probe = MemoryProbe(
        decoder,
        target_linears=decoder.linears,
        num_rank_rows=16,
        memory_limit_bytes=1 << 30,
        objective=Ipo(),
    )
    peaks, fits = probe.measure(ProbePass(r=8, lengths=(9, 9, 9)))
    assert fits
    assert {peak.size.num_sequences for peak in peaks} == {4}
    probe.close()


def test_batches_count_pairs(decoder: Decoder) -> None:
    (spec, *_) = with_objectives(Ipo())
    (event,) = executor_for(decoder, [replace(spec, batch_size=NUM_PAIRS)]).step()
    assert event.num_tokens == int(ROWS.lengths.sum())


def test_the_base_model_is_measured_by_the_same_objective(decoder: Decoder) -> None:
    executor = executor_for(decoder, [])
    found = executor.evaluate_base(rows=ROWS, row_ids=range(NUM_PAIRS), objective=OBJECTIVES["dpo"])
    assert set(found.metrics) == {"reward_accuracy", "reward_margin"}
    # against itself it prefers nothing: log 2 for every pair
    own = executor.evaluate_base(rows=ROWS, row_ids=range(len(ROWS)))
    rows = replace(ROWS, reference_logps=-np.array(own.terms))
    itself = executor.evaluate_base(rows=rows, row_ids=range(NUM_PAIRS), objective=OBJECTIVES["dpo"])
    assert itself.loss == pytest.approx(math.log(2), abs=1e-6)
    # one sum in float32 and the same one in another order: a margin of a rounding either way
    margins = itself.group_metrics["reward_margin"]
    assert margins == pytest.approx((0.0,) * NUM_PAIRS, abs=1e-6)
    assert itself.metrics["reward_accuracy"] == pytest.approx(sum(margin > 0 for margin in margins) / NUM_PAIRS)
