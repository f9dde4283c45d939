"""What a checkpoint of no native family is: the sizes and linears of the model that transformers builds for it.

The model is built without memory for its weights, once for each checkpoint and version of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem, UnsupportedModelError
from cohort.models.bridge.structure import (
    expert_parameters,
    is_transposed,
    layer_list,
    loss_head,
    other_tensors,
    plain_linears,
    text_decoder,
    whole_modules,
)
from cohort.models.config import BridgedModel, DecoderConfig, RotaryConfig
from cohort.models.remote_code import TRUST_VARIABLE, code_digest, code_files, may_run_code
from cohort.models.transformers_answers import answered

__all__ = ["READ_METHODS", "describe_bridged", "hidden_code_problem", "runs_own_code", "stored_method"]

# formats whose weights transformers turns into plain numbers while it reads them, exactly
READ_METHODS = ("mxfp4", "fp8")

# by the names that architectures have for a factor on the logits, and what it is then
_FACTORS = {
    "logit_scale": lambda value: value,
    "logits_scaling": lambda value: 1 / value,
    "lm_head_multiplier": lambda value: value,
}
# with another number what was kept on disk is asked for again: count it up with every change of the text
_QUESTION = "bridged model 9"
# the oldest version whose attention and masks can be replaced by name
_LEAST_VERSION = "4.56"


def describe_bridged(folder: Path, raw: Mapping[str, Any], *, native: str) -> DecoderConfig:
    """Return the decoder that ``folder/config.json``, whose content is ``raw``, describes.

    Args:
        native: The native families, for messages.

    Raises:
        UnsupportedModelError: it is no causal language model, or none that this version of transformers has.
        InputError: its settings contradict each other, or its weights are stored in a format that nothing here reads.
    """
    path = folder / "config.json"
    _require_known(raw, path, native=native)
    runs_code = runs_own_code(raw, folder)

    def ask() -> dict[str, Any]:
        return _facts(folder, path, named=_named(raw), native=native, runs_code=runs_code)

    question = f"{_QUESTION}, code {code_digest(folder)}" if runs_code else _QUESTION
    facts = answered(question, folder, ask=ask)
    generation = path.with_name("generation_config.json")
    stops = None
    if generation.is_file():
        stops = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
    return DecoderConfig(
        **{key: facts[key] for key in _PLAIN},
        windows=(None,) * facts["num_layers"],
        rotary=RotaryConfig(rope_type="transformers", inverse_frequencies=()),
        eos_token_ids=_as_ids(facts["eos"] if stops is None else stops),
        bridged=BridgedModel(
            linears=tuple((str(name), int(ins), int(outs)) for name, ins, outs in facts["linears"]),
            others=tuple((str(key), tuple(shape)) for key, shape in facts["others"]),
            layers=facts["layers"],
            head_scale=facts["head_scale"],
            are_transposed=facts["are_transposed"],
            experts_per_token=facts["experts_per_token"],
            left_alone=tuple(facts["left_alone"]),
            whole_modules=tuple(facts["whole_modules"]),
            own_code=code_files(raw) if runs_code else (),
            expert_parameters=tuple(
                (str(path), int(count), int(ins), int(outs), bool(is_transposed))
                for path, count, ins, outs, is_transposed in facts["expert_parameters"]
            ),
        ),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        rms_norm_eps=0.0,
    )


_PLAIN = (
    "family",
    "architecture",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
    "tie_word_embeddings",
    "bos_token_id",
    "pad_token_id",
    "logit_cap",
)


def _named(raw: Mapping[str, Any]) -> str:
    return ", ".join(map(str, raw.get("architectures") or [])) or str(raw.get("model_type", "no architecture"))


def _require_known(raw: Mapping[str, Any], path: Path, *, native: str) -> None:
    """Refuse what cannot be a causal language model of this transformers, without building it."""
    if (problem := hidden_code_problem(raw, path)) is not None:
        raise UnsupportedModelError(problem)
    if raw.get("is_encoder_decoder"):
        raise _unsupported(path, f"{_named(raw)}, an encoder with a decoder", native)
    wrong = [name for name in raw.get("architectures") or [] if not _is_generative(str(name))]
    if wrong:
        raise _unsupported(path, f"{', '.join(map(str, wrong))}, which predicts no next token", native)
    stored = raw.get("quantization_config")
    if stored is not None and (method := stored_method(raw)) not in READ_METHODS:
        raise InputError(
            Problem(
                where=f"{path}: quantization_config",
                found=f"weights stored as {method}",
                allowed=f"{_named(raw)} with weights stored as float32, bfloat16, float16, {' or '.join(READ_METHODS)}",
                hint="Use the unquantised checkpoint of this model; `quantization` quantises it.",
            )
        )


def stored_method(raw: Mapping[str, Any]) -> str | None:
    """Return the name of the quantised format that a checkpoint's weights are stored in; None for plain numbers."""
    stored = raw.get("quantization_config")
    if stored is None:
        return None
    return str(stored.get("quant_method", "unknown") if isinstance(stored, dict) else stored)


def hidden_code_problem(raw: Mapping[str, Any], path: Path) -> Problem | None:
    """Return what is wrong with a checkpoint whose model is Python code of its own; None elsewhere."""
    if not _needs_own_code(raw) or may_run_code(path.parent):
        return None
    return Problem(
        where=f"{path}: auto_map",
        found=f"a model that runs code of its own ({', '.join(code_files(raw))})",
        allowed="models whose code is in transformers: code from a checkpoint is not run unless you ask for it",
        hint="Choose the version of this model that transformers computes, if there is one. Where you have read the "
        f"code and trust it, set {TRUST_VARIABLE}={path.parent} (or its hub id) on this machine.",
    )


def runs_own_code(raw: Mapping[str, Any], folder: Path) -> bool:
    """Return whether the model in ``folder`` is computed by its own code, which this machine's user asked for."""
    return _needs_own_code(raw) and may_run_code(folder)


def _needs_own_code(raw: Mapping[str, Any]) -> bool:
    # of a model that transformers has, the code is an older copy
    return bool(code_files(raw)) and not _is_known(str(raw.get("model_type")))


def _is_generative(architecture: str) -> bool:
    ends = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "LMHead")
    return architecture.endswith(ends)


def _is_known(model_type: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _facts(folder: Path, path: Path, *, named: str, native: str, runs_code: bool) -> dict[str, Any]:
    """Return what is reported of a checkpoint, as JSON holds it."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=runs_code)
    except Exception as error:  # its validation raises many types; each means that the file is wrong or too new
        raise _not_built(path, error, named=named, native=native) from error
    if not runs_code and not _is_known(config.model_type):
        raise _unsupported(path, f"{named}, of which transformers {transformers.__version__} has no causal LM", native)
    if config.is_encoder_decoder:
        raise _unsupported(path, f"{named}, an encoder with a decoder", native)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=runs_code)
    except Exception as error:
        raise _not_built(path, error, named=named, native=native) from error
    text = config.get_text_config(decoder=True)
    decoder, head = text_decoder(model), loss_head(model, path)
    layers = layer_list(model, decoder, path)
    embedding = model.get_input_embeddings().weight
    heads = _size(text, "num_attention_heads", "n_head", "num_heads") or 1
    linears = plain_linears(model, layers)
    if not linears:
        raise _not_adaptable(path, named)
    return {
        "family": str(config.model_type),
        "architecture": type(model).__name__,
        "vocab_size": int(head.out_features),
        "hidden_size": int(head.in_features),
        "intermediate_size": int(_size(text, "intermediate_size", "ffn_dim", "n_inner") or 4 * head.in_features),
        "num_layers": len(model.get_submodule(layers)),
        "num_heads": int(heads),
        "num_kv_heads": int(_size(text, "num_key_value_heads") or heads),
        "head_dim": int(_size(text, "head_dim") or embedding.shape[1] // heads),
        "max_position_embeddings": int(
            _size(text, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len") or 2**20
        ),
        "tie_word_embeddings": head.weight is embedding,
        "bos_token_id": _first(_setting(text, "bos_token_id")),
        "pad_token_id": _first(_setting(text, "pad_token_id")),
        "eos": _setting(text, "eos_token_id"),
        "logit_cap": _setting(text, "final_logit_softcapping", "logits_soft_cap"),
        "head_scale": _head_scale(text),
        "are_transposed": any(is_transposed(model.get_submodule(name)) for name, _, _ in linears),
        "experts_per_token": int(_size(text, "num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k") or 1),
        "layers": layers,
        "linears": linears,
        "others": other_tensors(model, linears),
        "whole_modules": whole_modules(model),
        "expert_parameters": expert_parameters(model, layers),
        "left_alone": sorted({name.split(".")[-1] for name in _outside(model, decoder, head)} or _of_others(path)),
    }


def _setting(settings: Any, *names: str) -> Any:
    """Return the first of the settings that is there; architectures have several names for one."""
    for name in names:
        try:
            value = getattr(settings, name, None)
        except Exception:  # a setting that differs from layer to layer raises in transformers
            continue
        if value is not None:
            return value
    return None


def _size(settings: Any, *names: str) -> int | None:
    """Return a size that the checkpoint states; the largest where layers have their own."""
    value = _setting(settings, *names)
    size: int | None = max(value) if isinstance(value, list | tuple) and value else value
    return size


def _head_scale(settings: Any) -> float:
    scale = 1.0
    for name, factor in _FACTORS.items():
        value = getattr(settings, name, None)
        if isinstance(value, int | float) and value:
            scale *= float(factor(value))
    return scale


def _outside(model: Any, decoder: Any, head: Any) -> list[str]:
    """Return the largest parts with weights that neither lead to the text decoder nor belong to it or the head."""
    inside = {id(module) for module in (*decoder.modules(), head, model.get_input_embeddings())}
    path = {name for name, module in model.named_modules() if module is decoder}
    leading = {name.rsplit(".", count)[0] for name in path for count in range(1, name.count(".") + 1)} | {"", *path}
    found: list[str] = []
    for name, module in model.named_modules():
        if name in leading or id(module) in inside or any(name.startswith(f"{other}.") for other in found):
            continue
        if any(True for _ in module.parameters()):
            found.append(name)
    return found


def _of_others(path: Path) -> set[str]:
    """Return the parts that a checkpoint's settings name and a class of text alone does not load."""
    names = json.loads(path.read_text(encoding="utf-8"))
    return {name.removesuffix("_config") for name in names if name in ("audio_config", "vision_config")}


def _first(value: Any) -> int | None:
    first: int | None = value[0] if isinstance(value, list) else value
    return first


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _short(native: str) -> str:
    """Return the families without what all their names end with."""
    return native.replace("ForCausalLM", "")


def _not_adaptable(path: Path, named: str) -> InputError:
    return InputError(
        Problem(
            where=str(path),
            found=f"{named}, whose layers have no linear that an adapter could adapt",
            allowed="a model with linears in its layers",
            hint="Choose another base model.",
        )
    )


def _unsupported(path: Path, found: str, native: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        Problem(
            where=f"{path}: architectures",
            found=found,
            allowed=f"any causal language model that transformers loads; natively: {_short(native)} (ForCausalLM)",
            hint="Choose a base model that generates text.",
        )
    )


def _not_built(path: Path, error: Exception, *, named: str, native: str) -> InputError:
    import transformers

    said = json.loads(path.read_text(encoding="utf-8"))
    known = said.get("model_type") in transformers.CONFIG_MAPPING
    if known:
        return InputError(
            Problem(
                where=str(path),
                found=" ".join(str(error).split()),
                allowed="settings that transformers accepts",
                hint="Restore the config.json that belongs to these weights.",
            )
        )
    written = said.get("transformers_version")
    return UnsupportedModelError(
        Problem(
            where=f"{path}: architectures",
            found=f"{named}, which transformers {transformers.__version__} does not have"
            + (f"; the checkpoint was written by transformers {written}" if written else ""),
            allowed=f"any causal language model that the installed transformers (at least {_LEAST_VERSION}) loads; "
            f"natively: {_short(native)}",
            hint=f"Install transformers {written} or newer." if written else "Install a newer transformers.",
        )
    )
