"""The variants of LoRA that tests of every invariant run over, on the models of :mod:`tests.training.small_models`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, VeraConfig, get_peft_model
from peft.tuners.lora.config import BdLoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS, SavedModules
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal, BlockFactor
from cohort.adapters.variants.block_factors import packed
from cohort.adapters.variants.vera import lambda_d_columns
from cohort.adapters.variants.vera_settings import VectorAdapter


def saved_in_qwen2(*names: str) -> SavedModules:
    """Modules of the model of ``save_qwen2``, all of whose linears are adapted."""
    return SavedModules(names=names, vocab_size=96, hidden_size=64, width=2000)


VARIANTS: dict[str, AdapterSpec] = {
    "gaussian": AdapterSpec(r=6, lora_alpha=9, init_lora_weights="gaussian", lora_dropout=0.2),
    "pissa": AdapterSpec(r=5, lora_alpha=10, init_lora_weights="pissa", use_rslora=True),
    "pissa_niter": AdapterSpec(r=4, lora_alpha=8, init_lora_weights="pissa_niter_2"),
    "olora": AdapterSpec(r=8, lora_alpha=4, init_lora_weights="olora"),
    "patterns": AdapterSpec(
        r=4,
        lora_alpha=8,
        lora_dropout=0.1,
        rank_pattern=(("down_proj", 11), (r"layers\.0\..*[qk]_proj", 2)),
        alpha_pattern=(("v_proj", 3.0), ("layers.1.self_attn.o_proj", 40.0)),
    ),
    "dora": AdapterSpec(r=4, lora_alpha=8, use_dora=True, lora_dropout=0.2),
    "dora_patterns": AdapterSpec(
        r=17,
        lora_alpha=8,
        use_dora=True,
        use_rslora=True,
        rank_pattern=(("v_proj", 3),),
        alpha_pattern=(("up_proj", 30),),
    ),
    "bd": AdapterSpec(r=8, lora_alpha=16, use_rslora=True, lora_dropout=0.1, use_bdlora=BlockDiagonal(nblocks=4)),
    "bd_swapped": AdapterSpec(
        r=8,
        lora_alpha=16,
        use_bdlora=BlockDiagonal(nblocks=2, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL),
    ),
    "bd_mixed": AdapterSpec(
        r=8,
        lora_alpha=16,
        use_bdlora=BlockDiagonal(
            nblocks=4, target_modules_bd_a=("down",), target_modules_bd_b=("up_proj",), match_strict=False
        ),
    ),
    "vera": AdapterSpec(r=20, lora_alpha=3.0, use_vera=VectorAdapter(projection_prng_key=7)),
    "vera_dropout": AdapterSpec(
        r=5, lora_alpha=1.0, lora_dropout=0.2, use_vera=VectorAdapter(d_initial=0.4, save_projection=False)
    ),
    "pissa_patterns": AdapterSpec(
        r=3, lora_alpha=6, init_lora_weights="pissa", rank_pattern=(("down_proj", 5),), alpha_pattern=(("q_proj", 2.0),)
    ),
    "saved_embedding": AdapterSpec(r=3, lora_alpha=6, saved=saved_in_qwen2(EMBEDDING), lora_dropout=0.1),
    "saved_head": AdapterSpec(r=20, lora_alpha=8, use_dora=True, saved=saved_in_qwen2(HEAD)),
    "saved_both": AdapterSpec(
        r=4, lora_alpha=8, alpha_pattern=(("v_proj", 3.0),), saved=saved_in_qwen2(EMBEDDING, HEAD)
    ),
    "saved_bd": AdapterSpec(r=8, lora_alpha=16, use_bdlora=BlockDiagonal(nblocks=4), saved=saved_in_qwen2(EMBEDDING)),
}


def peft_config(spec: AdapterSpec, **changes: Any) -> PeftConfig:
    """PEFT's configuration of an adapter that begins with plain factors, or of a VeRA adapter."""
    if spec.use_vera is not None:
        shared = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"} | dataclasses.asdict(spec.use_vera)
        return VeraConfig(r=spec.r, vera_dropout=spec.lora_dropout, **shared | changes)
    options: dict[str, Any] = {
        "r": spec.r,
        "lora_alpha": spec.lora_alpha,
        "target_modules": "all-linear",
        "lora_dropout": spec.lora_dropout,
        "use_rslora": spec.use_rslora,
        "use_dora": spec.use_dora,
        "rank_pattern": dict(spec.rank_pattern),
        "alpha_pattern": dict(spec.alpha_pattern),
        "use_bdlora": None if spec.use_bdlora is None else BdLoraConfig(**dataclasses.asdict(spec.use_bdlora)),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "modules_to_save": None if spec.saved is None else list(spec.saved.names),
    }
    return LoraConfig(**options | changes)


def trained_tensors(layout: AdapterLayout, spec: AdapterSpec, weights_RD: Tensor) -> dict[str, Tensor]:
    """What is trained under PEFT's names, at the training precision (files hold float32)."""
    tensors = {}
    for name, columns in layout.columns.items():
        if spec.use_vera is not None:
            tensors[f"base_model.model.{name}.vera_lambda_b"] = weights_RD[0, columns.b]
            tensors[f"base_model.model.{name}.vera_lambda_d"] = weights_RD[0, lambda_d_columns(columns, r=spec.r)]
            continue
        rows = slice(0, spec.rank_of(name))
        a, b = weights_RD[rows, columns.a], weights_RD[rows, columns.b].T
        blocks = spec.use_bdlora
        factor = None if blocks is None else blocks.factor_of(name)
        if blocks is not None and factor is BlockFactor.A:
            a = packed(a, nblocks=blocks.nblocks)
        elif blocks is not None and factor is BlockFactor.B:
            b = packed(b, nblocks=blocks.nblocks)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        if spec.use_dora:
            tensors[f"base_model.model.{name}.lora_magnitude_vector.weight"] = weights_RD[spec.magnitude_row, columns.b]
    if spec.saved is not None:
        for name in spec.saved.names:
            path = f"base_model.model.{SAVED_PATHS[name]}.modules_to_save.weight"
            tensors[path] = spec.saved.table(weights_RD[spec.saved_row :], name)
    return tensors


def peft_model(
    directory: Path, spec: AdapterSpec, layout: AdapterLayout, start_RD: Tensor, *, attention: str = "sdpa"
) -> tuple[Any, dict[str, torch.nn.Parameter]]:
    """A PEFT model of ``start``'s dtype that begins where ``start`` does, and its trained parameters.

    The base of an adapter with frozen rows is the residual, as PEFT makes it.
    """
    dtype = start_RD.dtype
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
    model = get_peft_model(base, peft_config(spec), autocast_adapter_dtype=False)
    names = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
    start = trained_tensors(layout, spec, start_RD)
    assert names.keys() == start.keys()
    with torch.no_grad():
        for name, tensor in start.items():
            assert names[name].shape == tensor.shape, name
            names[name].copy_(tensor)
        if spec.has_frozen_rows:
            for module in layout.linears:
                a, b = (start[f"base_model.model.{module}.lora_{factor}.weight"] for factor in "AB")
                model.base_model.model.get_submodule(module).base_layer.weight -= spec.scale_of(module) * b @ a
    return model, names
