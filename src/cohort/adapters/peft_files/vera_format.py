"""VeRA adapters as PEFT stores them, and the plain LoRA with scale 1 that readers make of them.

Files hold ``vera_lambda_b`` [N] and ``vera_lambda_d`` [r] of each adapted linear and, with ``save_projection``, the
shared ``vera_A`` [r, K*] and ``vera_B`` [N*, r]. Without them a reader draws them again; the width K* of A, which PEFT
takes from the model, stands in the file's metadata, so that an adapter can be read by itself.

Shapes:  r rank · K input width · N output width of one linear · K* and N* the largest of all adapted linears
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_names import PREFIX
from cohort.adapters.variants.vera import (
    Projections,
    drawn_projections,
    lambda_d_columns,
    layout_projections,
    plain_factors,
    projection_widths,
)
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.hub_ids import split_revision

__all__ = [
    "is_vera",
    "read_projections",
    "vera_config",
    "vera_factors",
    "vera_modules",
    "vera_tensors",
    "with_width",
]

_LAMBDA_B, _LAMBDA_D = ".vera_lambda_b", ".vera_lambda_d"
_PROJECTIONS = ("base_model.vera_A", "base_model.vera_B")
_WIDTH = "vera_in_features"


def vera_tensors(layout: AdapterLayout, adapter: VectorAdapter, vectors_D: Tensor, *, r: int) -> dict[str, Tensor]:
    """Return an adapter's tensors under PEFT's names, float32 and contiguous."""
    tensors = {}
    for name, columns in layout.columns.items():
        tensors[f"{PREFIX}{name}{_LAMBDA_B}"] = vectors_D[columns.b].float().contiguous()
        tensors[f"{PREFIX}{name}{_LAMBDA_D}"] = vectors_D[lambda_d_columns(columns, r=r)].float().contiguous()
    if adapter.save_projection:
        pair = layout_projections(layout, adapter, r=r)
        tensors |= zip(_PROJECTIONS, (pair.a_rK, pair.b_Nr), strict=True)
    return tensors


def with_width(file: bytes, layout: AdapterLayout) -> bytes:
    """Return a safetensors file whose header also names the width of A.

    Not through safetensors: it writes several entries of metadata in an order that differs from process to process.
    """
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    header["__metadata__"][_WIDTH] = str(projection_widths(layout)[0])
    text = json.dumps(header, separators=(",", ":")).encode()
    # the data begins at a multiple of eight
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[8 + length :]


def vera_config(
    adapter: VectorAdapter,
    *,
    r: int,
    dropout: float,
    base_model: str,
    target_modules: Iterable[str],
    fan_in_fan_out: bool = False,
) -> dict[str, object]:
    """Return ``adapter_config.json`` as PEFT's VeraConfig reads it.

    ``fan_in_fan_out``: whether the base model keeps the weights of its linears as [K, N].
    """
    return {
        "base_model_name_or_path": split_revision(base_model)[0],
        "bias": "none",
        "d_initial": adapter.d_initial,
        "fan_in_fan_out": fan_in_fan_out,
        "inference_mode": True,
        "init_weights": True,
        "modules_to_save": None,
        "peft_type": "VERA",
        "projection_prng_key": adapter.projection_prng_key,
        "r": r,
        "revision": split_revision(base_model)[1],
        "save_projection": adapter.save_projection,
        "target_modules": list(target_modules),
        "task_type": "CAUSAL_LM",
        "vera_dropout": dropout,
    }


def is_vera(config: Mapping[str, Any]) -> bool:
    """Return whether ``adapter_config.json`` is that of a VeRA adapter that can be read."""
    return config.get("peft_type") == "VERA" and config.get("bias", "none") == "none"


def vera_modules(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the full paths of the linears that a VeRA adapter's tensors are for, in their order."""
    return [name.removeprefix(PREFIX).removesuffix(_LAMBDA_B) for name in tensors if name.endswith(_LAMBDA_B)]


def vera_factors(
    projections: Projections, tensors: Mapping[str, Tensor], module: str, *, in_features: int
) -> tuple[Tensor, Tensor]:
    """Return A [r, K] and B [N, r] of the LoRA adapter with scale 1 that one linear is."""
    lambda_b_N, lambda_d_r = (tensors[f"{PREFIX}{module}{end}"] for end in (_LAMBDA_B, _LAMBDA_D))
    return plain_factors(projections, lambda_d_r=lambda_d_r, lambda_b_N=lambda_b_N, in_features=in_features)


def read_projections(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str], where: str
) -> Projections:
    """Return the projections of a file's adapter, as they are in it or drawn again.

    Raises:
        InputError: a tensor is missing.
    """
    pair = _projections(config, tensors, metadata=metadata)
    missing = [module for module in vera_modules(tensors) if f"{PREFIX}{module}{_LAMBDA_D}" not in tensors]
    if pair is None or missing:
        gone = f"no {_LAMBDA_D[1:]} of {missing[0]}" if missing else "no vera_A and vera_B"
        raise InputError(
            Problem(
                where=where,
                found=f"a VeRA adapter with {gone}",
                allowed="vera_lambda_b and vera_lambda_d of each linear, with vera_A and vera_B",
                hint="Load it with PEFT on its base model and save it with save_projection=True.",
            )
        )
    return pair


def _projections(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str]
) -> Projections | None:
    if all(name in tensors for name in _PROJECTIONS):
        return Projections(a_rK=tensors[_PROJECTIONS[0]], b_Nr=tensors[_PROJECTIONS[1]])
    if _WIDTH not in metadata:
        return None
    return drawn_projections(
        r=int(config["r"]),
        in_features=int(metadata[_WIDTH]),
        out_features=max((len(tensor) for name, tensor in tensors.items() if name.endswith(_LAMBDA_B)), default=0),
        prng_key=int(config.get("projection_prng_key", 0)),
    )
