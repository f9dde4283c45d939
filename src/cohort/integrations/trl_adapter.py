"""PEFT's ``LoraConfig`` and ``VeraConfig`` as the ``lora`` section of a task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cohort.adapters.spec import INITIALISATIONS
from cohort.integrations.trl_fields import ConfigFields, are_names, word_of

__all__ = ["ADAPTER_CONFIGS", "PEFT_DEFAULT_MODULES", "adapter_section", "refuse_unnamed_modules"]

ADAPTER_CONFIGS = ("LoraConfig", "VeraConfig")
"""By the names of their classes: peft does not have to be installed."""
PEFT_DEFAULT_MODULES = ("q_proj", "v_proj")
"""What PEFT adapts where ``target_modules`` is None, in every family that Cohort trains."""

# mapped below, field by field
_MAPPED_LORA = """
    r lora_alpha lora_dropout use_rslora target_modules task_type peft_type base_model_name_or_path init_lora_weights
    use_dora use_bdlora modules_to_save revision
    rank_pattern alpha_pattern exclude_modules layers_to_transform layers_pattern
"""
_MAPPED_VERA = """
    r vera_dropout d_initial projection_prng_key save_projection target_modules task_type peft_type
    base_model_name_or_path revision layers_to_transform layers_pattern
"""


def adapter_section(fields: ConfigFields) -> dict[str, Any]:
    """Return the ``lora`` section that a configuration means; what cannot be honoured is refused in ``fields``."""
    is_lora = fields.name == ADAPTER_CONFIGS[0]
    section = _lora(fields) if is_lora else _vera(fields)
    fields.refuse_others(_MAPPED_LORA if is_lora else _MAPPED_VERA)
    return section


def refuse_unnamed_modules(lora: ConfigFields) -> None:
    """Refuse a set of modules with something else than names, which could not be sorted."""
    modules = lora.get("target_modules")
    if isinstance(modules, set | frozenset) and not are_names(list(modules)):
        hint = "Write a list such as ['q_proj', 'v_proj']."
        lora.refuse("target_modules", allowed="'all-linear' or a list of names", hint=hint)


def _vera(vera: ConfigFields) -> dict[str, Any]:
    section = {key: vera.get(key) for key in ("r", "d_initial", "projection_prng_key", "save_projection")}
    section |= {"use_vera": True, "lora_dropout": vera.get("vera_dropout")}
    return section | _modules(vera)


def _lora(lora: ConfigFields) -> dict[str, Any]:
    section = {key: lora.get(key) for key in ("r", "lora_alpha", "lora_dropout", "use_rslora")}
    if lora.get("use_dora"):
        section["use_dora"] = True
    if (blocks := lora.get("use_bdlora")) is not None:
        # a list that is None names no linear, as in PEFT; left out it would be Cohort's default
        section["use_bdlora"] = dict(blocks if isinstance(blocks, Mapping) else vars(blocks))
    start = lora.get("init_lora_weights")
    start = str(start).lower() if start is not None else "true"
    if not re.fullmatch(INITIALISATIONS, start):
        allowed = "True, 'gaussian', 'olora', 'pissa' or 'pissa_niter_N'"
        lora.refuse("init_lora_weights", allowed=allowed, hint="Write init_lora_weights=True.")
    elif start != "true":
        section["init_lora_weights"] = start
    if word_of(lora.get("peft_type")) not in (None, "LORA"):
        lora.refuse("peft_type", allowed="LORA", hint="Use a plain peft.LoraConfig.")
    return section | _modules(lora)


def _modules(lora: ConfigFields) -> dict[str, Any]:
    """Return which linears are adapted, and what differs between them."""
    section: dict[str, Any] = {}
    modules = lora.get("target_modules")
    if modules is None:
        modules = PEFT_DEFAULT_MODULES
    if modules == "all-linear":
        section["target_modules"] = modules
    elif isinstance(modules, list | tuple | set | frozenset):
        # PEFT keeps a set, whose order is another one in each process
        section["target_modules"] = sorted(modules)
    elif isinstance(modules, str):
        section["target_modules"] = modules
    else:
        hint = "Write target_modules='all-linear', or a list such as ['q_proj', 'v_proj']."
        allowed = "'all-linear', a list of names, an expression or None"
        lora.refuse("target_modules", allowed=allowed, hint=hint)
    if saved := lora.get("modules_to_save"):
        section["modules_to_save"] = sorted(saved) if isinstance(saved, set | frozenset) else saved
    for key in ("rank_pattern", "alpha_pattern", "exclude_modules", "layers_to_transform", "layers_pattern"):
        value = lora.get(key)
        if value is not None and value not in ({}, []):
            section[key] = sorted(value) if isinstance(value, set | frozenset) else value
    if word_of(lora.get("task_type")) not in (None, "CAUSAL_LM"):
        lora.refuse("task_type", allowed="None or 'CAUSAL_LM'", hint="Write task_type='CAUSAL_LM'.")
    return section
