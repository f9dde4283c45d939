"""Tiny random checkpoints of the architectures that transformers has, and what the product and PEFT make of each."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

from cohort.adapters.expert_names import parameters_among
from cohort.adapters.initialization import initial_weights
from cohort.adapters.peft_files.expert_format import shortest_target_parameters
from cohort.adapters.peft_files.peft_config import adapter_config, shortest_target_modules
from cohort.adapters.peft_files.peft_format import peft_tensors, serialised_weights
from cohort.adapters.saved.saved_modules import SavedModules
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

VOCABULARY = 96
STEPS = 5

# by the names that architectures have for their sizes; each takes those that it knows
_SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "ffn_hidden_size": 96,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 4,
    "n_inner": 96,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "sliding_window": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "original_max_position_embeddings": 256,
}
_LATENT: Mapping[str, Any] = {"num_key_value_heads": 4, "head_dim": 8}
_OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "youtu"), _LATENT),
    **dict.fromkeys(("axk1", "axk2", "minicpm3"), _LATENT),
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_heads": 4, "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "hrm_text": {"num_layers_per_stack": 2},
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 4},
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 32},
    "minimax_m3_vl_text": {
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
        "rotary_dim": 8,
        "index_n_heads": 2,
        "index_head_dim": 16,
    },
    "qwen4_exp_text": {"hc_lowrank": 16, "ngram_vocab_size_base": 512, "split_ngram_parts": 4},
    "gemma4_text": {"head_dim": 16, "global_head_dim": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"full_attn_idxs": [1, 3], "block_ff_dim": 96},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1},
    "zaya": {"num_experts_per_tok": 1},
}
# settings whose own values must stay
_KEPT = {"falcon": ("head_dim",), "lfm2_moe": ("layer_types",)}


def tiny_config(name: str, *, vocabulary: int = VOCABULARY) -> Any:
    """Return a small configuration of a model type, every kind of layer in it."""
    text = CONFIG_MAPPING[name]().get_text_config()
    values: dict[str, Any] = {}
    for key, value in {**_SMALL, "vocab_size": vocabulary}.items():
        is_plain = not isinstance(getattr(type(text), key, None), property)
        with contextlib.suppress(Exception):  # a setting that differs from layer to layer raises
            if is_plain and hasattr(text, key) and key not in _KEPT.get(name, ()):
                values[key] = value
    values.update(_OWN.get(name, {}))
    is_free = not isinstance(getattr(type(text), "layer_types", None), property)
    is_free = is_free and "layer_types" not in getattr(text, "attribute_map", {})
    if is_free and getattr(text, "layer_types", None) and name != "lfm2":
        kinds = list(dict.fromkeys(text.layer_types))
        count = max(4, len(kinds))
        values.update(num_hidden_layers=count, layer_types=[kinds[place % len(kinds)] for place in range(count)])
    return type(text)(**values)


def save_tiny(name: str, folder: Path, *, vocabulary: int = VOCABULARY) -> Path:
    """Save a random checkpoint of a model type, whose biases and gains are not the ones it begins with."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(name, vocabulary=vocabulary)).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder)
    return folder


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
    beside = executor_of(decoder, rows, token_budget=41, adapts_experts=adapts_experts, num_rank_rows=num_rank_rows)
    beside.load(with_neighbour(spec))
    beside.load(spec)
    for _ in range(spec.num_steps):
        beside.step()
    return torch.equal(beside.weights(0), executor.weights(0))


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
