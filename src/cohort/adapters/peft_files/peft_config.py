"""``adapter_config.json``: what an adapter is, as PEFT and vLLM read it next to its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cohort.adapters.peft_files.vera_format import vera_config
from cohort.adapters.spec import AdapterSpec
from cohort.core.input_values.hub_ids import split_revision

__all__ = ["adapter_config", "shortest_target_modules"]


def adapter_config(
    spec: AdapterSpec,
    *,
    base_model: str,
    target_modules: Iterable[str],
    target_parameters: Sequence[str] = (),
    fan_in_fan_out: bool = False,
) -> dict[str, object]:
    """Return ``adapter_config.json`` as PEFT and vLLM read it.

    An adapter with frozen rows is written as the plain LoRA that its tensors are: twice the rank, the same scale.

    Args:
        target_parameters: Stacked parameters whose experts are adapted.
        fan_in_fan_out: Whether the base model keeps the weights of its linears as [K, N].
    """
    if spec.use_vera is not None:
        return vera_config(
            spec.use_vera,
            r=spec.r,
            dropout=spec.lora_dropout,
            base_model=base_model,
            target_modules=target_modules,
            fan_in_fan_out=fan_in_fan_out,
        )
    blocks, ranks, alphas = spec.use_bdlora, 1, 1.0
    if spec.has_frozen_rows:
        ranks, alphas = 2, math.sqrt(2) if spec.use_rslora else 2.0
    config: dict[str, object] = {
        "alpha_pattern": {key: _as_written(alphas * alpha) for key, alpha in spec.alpha_pattern},
        "base_model_name_or_path": split_revision(base_model)[0],
        "bias": "none",
        "fan_in_fan_out": fan_in_fan_out,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": _as_written(alphas * spec.lora_alpha),
        "lora_dropout": spec.lora_dropout,
        "modules_to_save": None if spec.saved is None else list(spec.saved.names),
        "peft_type": "LORA",
        "r": ranks * spec.r,
        "rank_pattern": {key: ranks * r for key, r in spec.rank_pattern},
        "revision": split_revision(base_model)[1],
        "target_modules": list(target_modules),
        "task_type": "CAUSAL_LM",
        "use_dora": spec.use_dora,
        "use_rslora": spec.use_rslora,
    }
    if target_parameters:
        config["target_parameters"] = list(target_parameters)
    if blocks is not None:
        config["use_bdlora"] = {
            "match_strict": blocks.match_strict,
            "nblocks": blocks.nblocks,
            "target_modules_bd_a": list(blocks.target_modules_bd_a),
            "target_modules_bd_b": list(blocks.target_modules_bd_b),
        }
    return config


def _as_written(alpha: float) -> float:
    return int(alpha) if float(alpha).is_integer() else alpha


def shortest_target_modules(adapted: Iterable[str], *, linears: Iterable[str]) -> list[str]:
    """Return ``target_modules`` for ``adapter_config.json``: suffixes where they mean exactly the adapted linears.

    PEFT matches a suffix in every layer; where only some layers are adapted, full paths are returned.
    """
    adapted = set(adapted)
    suffixes = {name.rsplit(".", 1)[-1] for name in adapted}
    matched = {name for name in linears if name.rsplit(".", 1)[-1] in suffixes}
    # a number is the name of a layer as well
    are_exact = matched == adapted and not any(suffix.isdigit() for suffix in suffixes)
    return sorted(suffixes) if are_exact else sorted(adapted)
