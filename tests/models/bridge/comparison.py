"""What the product and PEFT make of a tiny checkpoint: its losses, its gradients and its adapter's files, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from cohort.adapters.expert_names import parameters_among
from cohort.adapters.initialization import initial_weights
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.adapters.peft_files.expert_format import shortest_target_parameters
from cohort.adapters.peft_files.peft_config import adapter_config, shortest_target_modules
from cohort.adapters.peft_files.peft_format import peft_tensors, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.data.tokenised import TokenisedRows
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters, module_names
from cohort.models.decoder import Decoder
from cohort.models.targets import select_linears
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from tests.models.bridge.architectures import VOCABULARY

__all__ = [
    "STEPS",
    "compare",
    "Compared",
    "executor_of",
    "rows_of",
    "sample_loss",
    "spec_of",
    "unadaptable",
    "with_copies",
    "with_neighbour",
]

STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How far the product is from transformers and PEFT with one checkpoint.

    Attributes:
        way: ``native`` or ``bridged``.
        logits: Largest difference of a logit.
        losses: Largest relative difference of a step's loss.
        weights: Difference of the trained adapters, relative to what training has changed.
        loaded: Relative difference of the loss that is reported and that of the saved adapter as PEFT loads it.
        is_isolated: Whether a neighbour that diverges leaves the trial its bits.
        adapted: Last names of the adapted linears.
    """

    way: str
    logits: float
    losses: float
    weights: float
    loaded: float
    is_isolated: bool
    adapted: tuple[str, ...]


def rows_of(count: int, *, seed: int = 0) -> TokenisedRows:
    from tests.training.small_models import random_rows

    return random_rows(count, seed=seed)


def spec_of(*, r: int = 4) -> TrialSpec:
    return TrialSpec(
        trial_id=0,
        seed=17,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
        # plain gradient steps: where a gradient is rounding alone, AdamW would step as far as anywhere
        learning_rate=0.3,
        optim="sgd",
        batch_size=4,
        num_steps=STEPS,
        schedule=Schedule.COSINE,
        warmup_ratio=0.1,
        weight_decay=0.0,
        max_grad_norm=1.0,
        loraplus_lr_ratio=1.0,
    )


def with_neighbour(spec: TrialSpec) -> TrialSpec:
    """Return a trial to stand in front of ``spec``: of another rank, and one whose first step makes it diverge."""
    return replace(spec, trial_id=1, seed=5, learning_rate=1e9, adapter=replace(spec.adapter, r=7))


def executor_of(
    decoder: Decoder,
    rows: TokenisedRows,
    *,
    token_budget: int = 100,
    gradient_checkpointing: str = "auto",
    device: str = "cpu",
    adapts_experts: bool = False,
    num_rank_rows: int = 64,
) -> Executor:
    names = [name for name in select_linears("all-linear", paths=decoder.linears) if name not in unadaptable(decoder)]
    names += expert_parameters(decoder.config) if adapts_experts else []
    return Executor(
        decoder,
        target_linears=adapter_layout(decoder.config, names),
        train_rows=rows,
        device=device,
        compute_dtype=decoder.dtype,
        settings=ExecutorSettings(
            num_slots=2,
            num_rank_rows=num_rank_rows,
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            gradient_checkpointing=GradientCheckpointing(gradient_checkpointing),
            keep_tokens=0 if gradient_checkpointing == "always" else None,
        ),
    )


def unadaptable(decoder: Decoder) -> Mapping[str, str]:
    return getattr(decoder, "unadaptable", {})


def compare(folder: Path, *, adapts_experts: bool = False, saved: tuple[str, ...] = ()) -> Compared:
    """Load the checkpoint here and with PEFT, compare logits, and train both alike.

    Args:
        saved: Of embedding and head, what the adapter trains a copy of.
    """
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    rows, spec = rows_of(12), spec_of()
    # the tables are rank rows as well
    executor = executor_of(decoder, rows, adapts_experts=adapts_experts, num_rank_rows=256 if saved else 64)
    if saved:
        spec = with_copies(spec, executor, saved)
    executor.load(spec)
    losses = [executor.step()[0].loss for _ in range(spec.num_steps)]
    layout = executor.bank.layout
    reported = executor.evaluate([0], rows=rows, row_ids=range(len(rows)))[0].loss
    found = peft_tensors(layout, spec.adapter, executor.weights(0))
    start = initial_weights(layout, spec.adapter, seed=spec.seed, dtype=torch.float32, weight_of=decoder.weight_of)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits = _largest_difference(decoder, model)
    # names that none but the adapted linears end with
    experts = list(parameters_among(layout.linears))
    targets = f"(?:{'|'.join(name.replace('.', '[.]') for name in layout.targets if name not in experts)})"
    is_transposed = any(isinstance(module, Conv1D) for module in model.modules())
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=targets, fan_in_fan_out=is_transposed)
    lora.target_parameters = experts or None
    lora.modules_to_save = list(saved) or None
    model = get_peft_model(model, lora)
    trained = {
        name.replace(".modules_to_save", "").replace(".default", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    begun = peft_tensors(layout, spec.adapter, start)
    assert trained.keys() == begun.keys(), sorted(trained.keys() ^ begun.keys())
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(begun[name])
    expected = _train_with_peft(model, list(trained.values()), spec, rows)
    return Compared(
        way="native" if decoder.config.bridged is None else "bridged",
        logits=logits,
        losses=max(abs(own - other) / abs(other) for own, other in zip(losses, expected, strict=True)),
        weights=_of_change(found, {name: own.detach() for name, own in trained.items()}, begun),
        loaded=abs(_loss_of_saved(folder, decoder, executor, rows, spec.adapter) - reported) / reported,
        is_isolated=_is_isolated(decoder, executor, rows, spec=spec, adapts_experts=adapts_experts),
        adapted=tuple(sorted({name.rsplit(".", 1)[-1] for name in layout.targets})),
    )


def with_copies(spec: TrialSpec, executor: Executor, names: tuple[str, ...]) -> TrialSpec:
    """Return a trial whose adapter trains copies of embedding, head or both."""
    config, width = executor.decoder.config, executor.bank.layout.width
    saved = SavedModules(names=names, vocab_size=config.vocab_size, hidden_size=config.hidden_size, width=width)
    return replace(spec, adapter=replace(spec.adapter, saved=saved))


def _loss_of_saved(folder: Path, decoder: Decoder, executor: Executor, rows: TokenisedRows, spec: AdapterSpec) -> float:
    """Return the loss of the rows with the adapter as PEFT loads it from its files."""
    layout, bridged = executor.bank.layout, decoder.config.bridged
    experts = list(parameters_among(layout.linears))
    linears = [name for name in layout.targets if name not in experts]
    config = adapter_config(
        spec,
        base_model="base",
        target_modules=shortest_target_modules(linears, linears=module_names(decoder.config)),
        target_parameters=shortest_target_parameters(experts, parameters=list(expert_parameters(decoder.config))),
        fan_in_fan_out=bridged is not None and bridged.are_transposed,
    )
    saved = folder / "adapter"
    saved.mkdir()
    (saved / "adapter_config.json").write_text(json.dumps(config))
    (saved / "adapter_model.safetensors").write_bytes(serialised_weights(layout, spec, executor.weights(0)))
    base: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, saved).eval()
    samples = [rows.sample(row) for row in range(len(rows))]
    with torch.no_grad():
        total = sum(float(sample_loss(model, sample)) for sample in samples)
    return total / sum(int(sample.trained[1:].sum()) for sample in samples)


def _is_isolated(
    decoder: Decoder, executor: Executor, rows: TokenisedRows, *, spec: TrialSpec, adapts_experts: bool
) -> bool:
    num_rank_rows = executor.settings.num_rank_rows
    packed = executor_of(decoder, rows, token_budget=41, adapts_experts=adapts_experts, num_rank_rows=num_rank_rows)
    packed.load(with_neighbour(spec))
    packed.load(spec)
    for _ in range(spec.num_steps):
        packed.step()
    return torch.equal(packed.weights(0), executor.weights(0))


def _train_with_peft(model: Any, parameters: list[Tensor], spec: TrialSpec, rows: TokenisedRows) -> list[float]:
    """Train one sequence at a time with a plain loop; return the losses of the steps."""
    optimizer = torch.optim.SGD(parameters, lr=spec.learning_rate)
    order, losses = spec.order(len(rows)), []
    # frozen parts of some architectures drop or differ while they train
    model.eval()
    for step in range(spec.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate_at(step)
        optimizer.zero_grad()
        samples = [rows.sample(row) for row in order.batch(step)]
        count, total = sum(int(sample.trained[1:].sum()) for sample in samples), 0.0
        for sample in samples:
            loss = sample_loss(model, sample) / count
            loss.backward()
            total += loss.item()
        losses.append(total)
        torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm)
        optimizer.step()
    return losses


def sample_loss(model: Any, sample: Any) -> Tensor:
    """Return the summed loss of one sample's trained tokens."""
    tokens = torch.from_numpy(sample.tokens.astype("int64"))
    trained = torch.from_numpy(sample.trained)
    logits = model(input_ids=tokens[None], use_cache=False).logits[0]
    targets = torch.where(trained, tokens, torch.full_like(tokens, -100))[1:]
    return torch.nn.functional.cross_entropy(logits[:-1].float(), targets, reduction="sum")


@torch.no_grad()
def _largest_difference(decoder: Decoder, model: Any) -> float:
    from cohort.models.attention import PackedAttention

    model.eval()
    lengths = (7, 13, 21)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in lengths]
    hidden_TD = decoder.forward(
        torch.cat(sequences),
        positions_T=torch.cat([torch.arange(length) for length in lengths]),
        attention=PackedAttention((0, 7, 20, 41)),
        lora=None,
    )
    own = decoder.logits(hidden_TD)
    other = torch.cat([model(input_ids=sequence[None], use_cache=False).logits[0] for sequence in sequences])
    return float((own - other).abs().max())


def _of_change(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], begun: Mapping[str, Tensor]) -> float:
    """Return how far two trained adapters are apart, relative to what training has changed."""
    apart = sum(float((found[name] - expected[name]).norm()) ** 2 for name in expected)
    changed = sum(float((expected[name] - begun[name]).norm()) ** 2 for name in expected)
    return float((apart / changed) ** 0.5)
