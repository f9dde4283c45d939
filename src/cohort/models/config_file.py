"""Reads a checkpoint's ``config.json`` into a :class:`DecoderConfig`, or says all that is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from cohort.core.errors import InputError, Problem
from cohort.kernels.gated_activation import Activation
from cohort.models.bridge.description import describe_bridged
from cohort.models.checkpoint.stored_nf4 import config_problem
from cohort.models.config import DecoderConfig, RotaryConfig
from cohort.models.families import FAMILIES, ModelFamily
from cohort.models.stated_settings import NotStatedError, StatedSettings
from cohort.models.transformers_answers import answered

__all__ = ["read_config"]

# by the names that transformers has for them
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
# what is computed from the settings, next to them
_SCALED = "scaled_rotary"
_ROTARY_TYPES = ("default", "linear", "llama3", "yarn", "dynamic")


def read_config(folder: Path) -> DecoderConfig:
    """Return the decoder that ``folder/config.json`` describes.

    Raises:
        UnsupportedModelError: no causal language model that transformers loads; the message names it.
        InputError: the file is missing, broken, or asks for something that is not supported.
    """
    path = folder / "config.json"
    raw = _read_json(path)
    family = _family(raw)
    if family is None:
        works = ", ".join(known.architecture for known in FAMILIES.usable())
        return describe_bridged(folder, raw, native=works)
    try:
        return _decoder(_stated(raw), raw, family, path)
    except (NotStatedError, InputError):
        # something is left open, or wrong: transformers says what
        return _decoder(_settings(folder, path), raw, family, path)


def _decoder(settings: Any, raw: Mapping[str, Any], family: ModelFamily, path: Path) -> DecoderConfig:
    """Return the decoder of settings.

    Raises:
        InputError: they ask for something that is not supported, or contradict each other.
    """
    problems = list(_unsupported_settings(settings, raw, family, path))
    if problems:
        raise InputError(problems)
    # chat models end an answer with other tokens than config.json names; generation uses those of this file
    generation = path.with_name("generation_config.json")
    stops = (_read_json(generation) if generation.is_file() else {}).get("eos_token_id")
    head_dim = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    try:
        return DecoderConfig(
            family=family.model_type,
            architecture=family.architecture,
            vocab_size=settings.vocab_size,
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_layers=settings.num_hidden_layers,
            num_heads=settings.num_attention_heads,
            num_kv_heads=settings.num_key_value_heads,
            head_dim=head_dim,
            rms_norm_eps=settings.rms_norm_eps,
            max_position_embeddings=settings.max_position_embeddings,
            tie_word_embeddings=bool(settings.tie_word_embeddings),
            qkv_bias=family.qkv_bias(settings),
            output_bias=family.output_bias(settings),
            mlp_bias=family.mlp_bias(settings),
            qk_norm=family.qk_norm,
            windows=family.windows(settings),
            rotary=_rotary(settings, head_dim),
            local_rotary=_plain_rotary(family.local_rotary_base(settings), head_dim),
            bos_token_id=settings.bos_token_id,
            eos_token_ids=_as_ids(settings.eos_token_id if stops is None else stops),
            pad_token_id=settings.pad_token_id,
            activation=_ACTIVATIONS[family.activation(settings)],
            norm_offset=family.norm_offset,
            norms=family.norms,
            embedding_scale=family.embedding_scale(settings),
            attention_scale=family.attention_scale(settings),
            attention_cap=family.attention_cap(settings),
            logit_cap=family.logit_cap(settings),
            norms_all_heads=family.norms_all_heads,
            has_fused_qkv=family.has_fused_qkv,
            has_fused_gate_up=family.has_fused_gate_up,
            rotates_pairs=family.rotates_pairs,
            query_growth=family.query_growth(settings),
            unrotated_layers=family.unrotated_layers(settings),
            residual_scale=family.residual_scale(settings),
            head_scale=family.head_scale(settings),
            mixture=family.mixture(settings),
            # others were refused above
            stored_quantization="nf4" if raw.get("quantization_config") else "none",
        )
    except ValueError as error:
        raise InputError(
            Problem(
                where=str(path),
                found=str(error),
                allowed="sizes that fit each other",
                hint="Restore the config.json that belongs to these weights.",
            )
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found, where = "no such file", str(path)
    except (OSError, UnicodeDecodeError) as error:
        found, where = str(error), str(path)
    except json.JSONDecodeError as error:
        found, where = f"broken JSON ({error.msg})", f"{path}:{error.lineno}"
    else:
        if isinstance(content, dict):
            return content
        found, where = f"a JSON {type(content).__name__}", str(path)
    raise InputError(
        Problem(
            where=where,
            found=found,
            allowed="the JSON object that transformers' save_pretrained writes",
            hint="Point model_name_or_path to a complete model directory.",
        )
    )


def _family(raw: Mapping[str, Any]) -> ModelFamily | None:
    """Return the native family of a checkpoint; None where there is none."""
    architectures = raw.get("architectures") or []
    family = FAMILIES.find(str(raw.get("model_type")))
    if family is None or not family.computes(raw):
        return None
    return family if not architectures or family.architecture in architectures else None


def _stated(raw: Mapping[str, Any]) -> Any:
    """Return what the file states by itself."""
    settings: Any = StatedSettings(raw)
    setattr(settings, _SCALED, _scaled_rotary(settings, settings.rope_parameters["rope_type"]))
    return settings


def _settings(folder: Path, path: Path) -> Any:
    # transformers knows each family's defaults and old spellings
    def ask() -> Any:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        settings = json.loads(config.to_json_string(use_diff=False))
        return {**settings, _SCALED: _scaled_rotary(config, _rotary_settings(config)["rope_type"])}

    try:
        return SimpleNamespace(**answered("configuration", folder, ask=ask))
    except Exception as error:  # its validation raises many types; each means that the file is wrong
        raise InputError(
            Problem(
                where=str(path),
                found=" ".join(str(error).split()),
                allowed="settings that transformers accepts",
                hint="Restore the config.json that belongs to these weights.",
            )
        ) from error


def _unsupported_settings(settings: Any, raw: Mapping[str, Any], family: ModelFamily, path: Path) -> Iterator[Problem]:
    def refused(key: str, found: str, allowed: str, hint: str) -> Problem:
        return Problem(where=f"{path}: {key}", found=found, allowed=allowed, hint=hint)

    activation = family.activation(settings)
    if activation not in _ACTIVATIONS:
        key = "hidden_act" if hasattr(settings, "hidden_act") else "hidden_activation"
        allowed = ", ".join(map(repr, _ACTIVATIONS))
        yield refused(key, repr(activation), allowed, "Choose a base model with one of these activations.")
    for key in family.refused:
        if getattr(settings, key, None):
            hint = "Choose a base model that leaves it off."
            yield refused(key, repr(getattr(settings, key)), "false, as in the family's published models", hint)
    if getattr(settings, "attention_dropout", 0.0):
        allowed = "0.0 (the frozen model has no dropout; adapters have lora_dropout)"
        yield refused("attention_dropout", repr(settings.attention_dropout), allowed, "Set attention_dropout to 0.0.")
    stored = raw.get("quantization_config")
    if stored and (found := config_problem(stored)) is not None:
        allowed = "weights stored as float32, bfloat16 or float16, or as bitsandbytes' nf4 with double quantisation"
        hint = "Use the unquantised checkpoint of this model; `quantization` quantises it."
        yield refused("quantization_config", found, allowed, hint)
    rotary = _rotary_settings(settings)
    if rotary["rope_type"] not in _ROTARY_TYPES:
        hint = "Choose a base model whose rotary frequencies do not change with the length of the sequence."
        yield refused("rope_parameters.rope_type", repr(rotary["rope_type"]), ", ".join(_ROTARY_TYPES), hint)
    if not family.rotates_part and rotary.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        found = repr(rotary["partial_rotary_factor"])
        yield refused("partial_rotary_factor", found, "1.0", "Choose a base model that rotates whole heads.")


def _rotary_settings(settings: Any) -> dict[str, Any]:
    # transformers 5 keeps everything in rope_parameters; 4 has rope_theta and rope_scaling
    found = getattr(settings, "rope_parameters", None)
    if found is None:
        found = {
            "rope_theta": getattr(settings, "rope_theta", 10_000.0),
            **(getattr(settings, "rope_scaling", None) or {}),
        }
    # where layers of two kinds rotate by two rules, a family says what the layers with a window rotate by
    found = found.get("full_attention") or found
    return {**found, "rope_type": found.get("rope_type", found.get("type", "default"))}


def _scaled_rotary(config: Any, kind: str) -> dict[str, Any] | None:
    """Return the frequencies that transformers computes for a scaling rule; None where they are the plain ones."""
    # dynamic scaling leaves them alone up to the stated context length; what is not supported is refused elsewhere
    if kind in ("default", "dynamic") or kind not in _ROTARY_TYPES:
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    by_kind = "full_attention" in (getattr(config, "rope_parameters", None) or {})
    options = {"layer_type": "full_attention"} if by_kind else {}
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **options)
    return {"frequencies": frequencies.tolist(), "scale": float(scale)}


def _rotary(settings: Any, head_dim: int) -> RotaryConfig:
    rotary = _rotary_settings(settings)
    kind, scale = rotary["rope_type"], 1.0
    if (scaled := getattr(settings, _SCALED)) is not None:
        frequencies, scale = torch.tensor(scaled["frequencies"], dtype=torch.float32), scaled["scale"]
    else:
        # dynamic scaling leaves the frequencies alone up to the stated context length and changes them beyond
        width = int(head_dim * (rotary.get("partial_rotary_factor") or 1.0))
        exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
        frequencies = 1.0 / (rotary["rope_theta"] ** exponents)
    return RotaryConfig(
        rope_type=kind,
        inverse_frequencies=tuple(frequencies.tolist()),
        scale=float(scale),
        max_positions=settings.max_position_embeddings if kind == "dynamic" else None,
    )


def _plain_rotary(base: float | None, head_dim: int) -> RotaryConfig | None:
    """Return frequencies without a scaling rule; None without a base."""
    if base is None:
        return None
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return RotaryConfig(rope_type="default", inverse_frequencies=tuple((1.0 / (base**exponents)).tolist()))


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
