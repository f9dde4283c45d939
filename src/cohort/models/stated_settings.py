"""The settings of a ``config.json`` that states all that is read of it, so that transformers need not be asked.

transformers knows defaults, old spellings and what contradicts itself, but its ``AutoConfig`` imports the compiler and
the distributed package of torch: 5 s before the first start on a model. A file that ``save_pretrained`` wrote leaves
nothing open. Whatever is open, or not plainly right, is left to transformers, with its errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["NotStatedError", "StatedSettings", "stated_tokenizer_class"]

# two names of one class; of these families transformers takes it where the tokenizer's settings name it
_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
_TOKENIZER_FAMILIES = ("llama", "qwen2", "qwen3")


class NotStatedError(Exception):
    """A setting is missing, or not plainly what it must be."""


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_token_id(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _are_token_ids(value: object) -> bool:
    return _is_token_id(value) or (
        isinstance(value, list) and value != [] and all(_is_token_id(one) and one is not None for one in value)
    )


def _are_full_attention(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(one == "full_attention" for one in value)


def _are_layers(value: object) -> bool:
    return isinstance(value, list) and all(_is_token_id(one) and one is not None for one in value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "decoder_sparse_step",
)
# what a setting must be for its value to be taken as it stands
_CHECKS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(_SIZES, _is_size),
    "rms_norm_eps": _is_number,
    "attention_dropout": _is_number,
    "tie_word_embeddings": _is_bool,
    "attention_bias": _is_bool,
    "mlp_bias": _is_bool,
    "norm_topk_prob": _is_bool,
    "mlp_only_layers": _are_layers,
    "hidden_act": _is_text,
    "bos_token_id": _is_token_id,
    "pad_token_id": _is_token_id,
    "eos_token_id": _are_token_ids,
    # an integer here would say which layers look how far: rules of one family each, which transformers applies
    "sliding_window": lambda value: value is None,
    "use_sliding_window": lambda value: value is False,
    "layer_types": _are_full_attention,
}
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class StatedSettings:
    """Settings by attribute, as transformers' configuration has them; one that is not stated raises.

    Raises:
        NotStatedError: an attribute is missing from the file, or it is none of those whose plain value is meant. It is
            no AttributeError, so ``getattr`` with a default does not hide it.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        raw = self._raw
        if name not in raw or name not in _CHECKS or not _CHECKS[name](raw[name]):
            raise NotStatedError(name)
        value = raw[name]
        if name == "layer_types" and len(value) != self.num_hidden_layers:
            raise NotStatedError(name)
        return value

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """The rule of the rotary frequencies, as transformers 5 writes it; 4 has it in two settings."""
        raw = self._raw
        found = raw.get("rope_parameters")
        if found is None:
            scaling = raw.get("rope_scaling") or {}
            if not isinstance(scaling, dict):
                raise NotStatedError("rope_scaling")
            found = {"rope_theta": raw.get("rope_theta"), **scaling}
        elif not isinstance(found, dict) or "rope_theta" in raw or "rope_scaling" in raw:
            raise NotStatedError("rope_parameters")
        found = {"rope_type": "default", **found}
        wanted = {"default": (), "llama3": _LLAMA3}.get(str(found["rope_type"]))
        if wanted is None or set(found) != {"rope_type", "rope_theta", *wanted}:
            raise NotStatedError("rope_parameters")
        if not all(_is_number(value) and value > 0 for key, value in found.items() if key != "rope_type"):
            raise NotStatedError("rope_parameters")
        return found

    def standardize_rope_params(self) -> None:
        """Do nothing: transformers' rules call it, and these parameters have the newest form."""


def stated_tokenizer_class(folder: Path) -> str | None:
    """Return the class that the tokenizer in ``folder`` names; None where transformers' tables decide."""
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        tokenizer, model = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("tokenizer_config.json", "config.json")
        )
        kind, family = tokenizer["tokenizer_class"], model["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_plain = kind in _TOKENIZERS and family in _TOKENIZER_FAMILIES and "auto_map" not in tokenizer
    return str(kind) if is_plain else None
