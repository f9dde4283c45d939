"""True shapes of models that transformers computes, with random weights: what benchmarks of bridged models run on."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES as LLAMA_SHAPES
from benchmarks.llama_shapes import hf_config
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.description import describe_bridged
from cohort.models.bridge.loading import wrap_model
from cohort.models.bridge.probe import prove
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters
from cohort.models.config import DecoderConfig
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["SHAPES", "bridged", "bridged_config", "bridged_executor", "native_config", "random_model"]

# what differs from the settings that transformers has for the model type: those of the real models
_QWEN3_MOE = {"num_hidden_layers": 48, "norm_topk_prob": True, "max_position_embeddings": 40960}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_TINY_STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-30b-a3b": ("qwen3_moe", _QWEN3_MOE),
    "qwen3.5-9b": ("qwen3_5_text", {}),
    "tiny-mixture": ("qwen3_moe", {**_TINY, "num_hidden_layers": 2, "num_experts": 8, "moe_intermediate_size": 32}),
    "tiny-hybrid": ("qwen3_5_text", {**_TINY, **_TINY_STATES, "num_hidden_layers": 4}),
}


def bridged_config(shape: str, *, num_layers: int | None = None) -> dict[str, Any]:
    """Return ``config.json`` of a shape of this file or of ``llama_shapes``, with fewer layers if asked."""
    if shape in LLAMA_SHAPES:
        return hf_config(shape, num_layers=num_layers)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, values = SHAPES[shape]
    if num_layers is not None:
        values = {**values, "num_hidden_layers": num_layers}
    config = CONFIG_MAPPING[kind](**values)
    found: dict[str, Any] = config.to_dict()
    classes = {"qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM"}
    return {**found, "architectures": [classes[kind]]}


def random_model(config: dict[str, Any], *, device: str, dtype: torch.dtype) -> Any:
    """Return the model of transformers with the weights that its class draws."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = CONFIG_MAPPING[config["model_type"]](**copy.deepcopy(config))
    settings._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return getattr(transformers, config["architectures"][0])(settings)
    finally:
        torch.set_default_dtype(torch.float32)


def bridged(config: dict[str, Any], model: Any, *, device: str) -> BridgedDecoder:
    """Return the decoder around ``model``, proved as a loaded one is; a stream is one row, as on a GPU.

    A refusal is printed and does not end the benchmark: routers with random weights choose by a hair, and 16 bits then
    choose otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        described = describe_bridged(Path(folder), config, native="")
    decoder = wrap_model(model, described, device=torch.device(device), weight_format=PLAIN, is_packed=True)
    try:
        prove(decoder, where=config["architectures"][0])
    except InputError as error:
        print(f"not proved with random weights: {error}", flush=True)
    return decoder


def native_config(config: dict[str, Any]) -> DecoderConfig:
    """Return the decoder's own record of a ``config.json`` of a native family."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        found = read_config(Path(folder))
    assert found.bridged is None, "the shape is of a native family"
    return found


def bridged_executor(
    decoder: Decoder,
    specs: Sequence[TrialSpec],
    rows: TokenisedRows,
    *,
    token_budget: int,
    targets: Sequence[str] | None = None,
    adapts_experts: bool = False,
    graph_tokens: int = 0,
    numerics: Numerics = Numerics.FAST,
) -> Executor:
    """Return an executor in which all of ``specs`` are resident.

    Args:
        targets: Last names of the adapted linears; None for all that can be adapted.
        adapts_experts: Whether every stacked expert is adapted as well.
        graph_tokens: Up to how many tokens passes are recorded; a bridged model's never are.
        numerics: A bridged model has fast ones alone on a GPU.
    """
    unadaptable = decoder.unadaptable if isinstance(decoder, BridgedDecoder) else {}
    names = [name for name in decoder.linears if name not in unadaptable]
    if targets is not None:
        names = [name for name in names if name.rsplit(".", 1)[-1] in targets]
    if adapts_experts:
        names += expert_parameters(decoder.config)
    layout: AdapterLayout = adapter_layout(decoder.config, names)
    executor = Executor(
        decoder,
        target_linears=layout,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(specs),
            num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            graph_tokens=graph_tokens,
            numerics=numerics,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    for spec in specs:
        executor.load(spec)
    return executor
