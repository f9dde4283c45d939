"""Adapters as PEFT stores them: ``adapter_config.json`` and ``adapter_model.safetensors``, float32.

A VeRA adapter is written as one (:mod:`cohort.adapters.peft_files.vera_format`) and read as the LoRA adapter that it
computes.

A BD-LoRA adapter (``use_bdlora``) stores a block-diagonal A as [r, K / n] and a block-diagonal B as [N, r / n], for n
blocks. Shapes tell which linears are stored so, not the flag: PEFT trains dense factors on quantised linears under it.

Shapes:  r rank · D entries of a rank row · K input width · N output width
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cohort.adapters.expert_names import parameter_of
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.expert_format import expert_tensors, with_single_experts
from cohort.adapters.peft_files.peft_names import LORA_A, LORA_B, MAGNITUDE, PREFIX
from cohort.adapters.peft_files.saved_format import (
    read_saved_modules,
    saved_key,
    saved_tensors,
    unsupported_modules,
    write_saved_rows,
)
from cohort.adapters.peft_files.vera_format import (
    is_vera,
    read_projections,
    vera_factors,
    vera_modules,
    vera_tensors,
    with_width,
)
from cohort.adapters.spec import AdapterSpec, changes_base
from cohort.adapters.variants.block_diagonal import BlockDiagonal, BlockFactor
from cohort.adapters.variants.block_factors import expanded, packed
from cohort.adapters.variants.vera import Projections
from cohort.core.errors import InputError, Problem
from cohort.core.safetensors_header import safetensors_header

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "PeftAdapter",
    "peft_tensors",
    "rank_rows_from_peft",
    "read_adapter",
    "serialised_weights",
    "weight_parts",
]

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class PeftAdapter:
    """An adapter read from a directory: its hyperparameters and its tensors under PEFT's names, experts one by one.

    Attributes:
        spec: Of a VeRA adapter that of the LoRA adapter with scale 1 that :meth:`factors` gives. Where it has modules
            of its own, their place follows from the layout that they are used in: see :meth:`spec_in`.
        projections: Those of a VeRA adapter; None for all others.
    """

    spec: AdapterSpec
    tensors: Mapping[str, Tensor]
    projections: Projections | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        """Full paths of the adapted linears, sorted."""
        if self.projections is not None:
            return tuple(sorted(vera_modules(self.tensors)))
        return tuple(sorted(name[len(PREFIX) : -len(LORA_A)] for name in self.tensors if name.endswith(LORA_A)))

    def spec_in(self, layout: AdapterLayout) -> AdapterSpec:
        """Return the spec for rank rows of ``layout``."""
        saved = self.spec.saved
        return self.spec if saved is None else replace(self.spec, saved=saved.in_width(layout.width))

    def saved_table(self, name: str) -> Tensor:
        """Return the whole table [V, D] of one of the modules that ``spec.saved`` names."""
        return self.tensors[saved_key(name)]

    def factors(self, module: str, *, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return A [r, K] and B [N, r] of one linear, block-diagonal ones with their zeros.

        Args:
            shape: K and N of the linear in the base model. Factors that fit it in no form are returned as stored.
        """
        if self.projections is not None:
            return vera_factors(self.projections, self.tensors, module, in_features=shape[0])
        a, b = self.tensors[f"{PREFIX}{module}{LORA_A}"], self.tensors[f"{PREFIX}{module}{LORA_B}"]
        blocks, (in_features, out_features), r = self.spec.use_bdlora, shape, self.spec.r
        if blocks is not None:
            n = blocks.nblocks
            if a.shape == (r, in_features / n) and b.shape == (out_features, r):
                return expanded(a, nblocks=n), b
            if a.shape == (r, in_features) and b.shape == (out_features, r / n) and out_features % n == 0:
                return a, expanded(b, nblocks=n)
        return a, b

    def magnitude(self, module: str) -> Tensor:
        """Return the magnitudes [N] of a DoRA adapter's linear.

        Raises:
            InputError: the file has none.
        """
        name = f"{PREFIX}{module}{MAGNITUDE}"
        if name not in self.tensors:
            raise InputError(
                Problem(
                    where=f"{WEIGHTS_FILE}: {module}",
                    found=f"use_dora without {MAGNITUDE[1:]}",
                    allowed="magnitudes for each adapted linear",
                    hint="Save the adapter again with PEFT 0.9 or later.",
                )
            )
        return self.tensors[name]


def peft_tensors(layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor) -> dict[str, Tensor]:
    """Return A [r, K] and B [N, r] of every adapted linear under PEFT's names, float32 and contiguous.

    Of an adapter with frozen rows they are ``[A; A0]`` and ``[B, -B0]``, of rank 2 r: the plain LoRA of the original
    base model that PEFT's ``path_initial_model_for_weight_conversion`` makes.
    """
    if spec.use_vera is not None:
        return vera_tensors(layout, spec.use_vera, weights_rD[0], r=spec.r)
    tensors = {}
    for name, columns in layout.columns.items():
        if parameter_of(name) != name:
            continue
        rows = _rows_of(spec, name)
        a, b = weights_rD[rows, columns.a].float(), weights_rD[rows, columns.b].T.float()
        blocks = spec.use_bdlora
        factor = None if blocks is None else blocks.factor_of(name)
        if blocks is not None and factor is BlockFactor.A:
            a = packed(a, nblocks=blocks.nblocks)
        elif blocks is not None and factor is BlockFactor.B:
            b = packed(b, nblocks=blocks.nblocks)
        tensors[f"{PREFIX}{name}{LORA_A}"] = a.contiguous()
        tensors[f"{PREFIX}{name}{LORA_B}"] = b.contiguous()
        if spec.use_dora:
            tensors[f"{PREFIX}{name}{MAGNITUDE}"] = weights_rD[spec.magnitude_row, columns.b].float().contiguous()
    return tensors | expert_tensors(layout, spec, weights_rD) | saved_tensors(spec, weights_rD)


def _rows_of(spec: AdapterSpec, name: str) -> list[int]:
    r, frozen = spec.rank_of(name), spec.largest_rank
    return [*range(r), *(range(frozen, frozen + r) if spec.has_frozen_rows else ())]


def rank_rows_from_peft(layout: AdapterLayout, adapter: PeftAdapter) -> Tensor:
    """Return the rank rows [r, D] of an adapter that was stored by :func:`peft_tensors` or by PEFT.

    Its spec is then that of :meth:`PeftAdapter.spec_in`.

    Linears of the layout that the adapter lacks stay zero: their term vanishes, as in PEFT.

    Raises:
        InputError: the adapter has a linear that the layout lacks, or a factor of another shape.
    """
    spec = adapter.spec_in(layout)
    rows_rD = torch.zeros(spec.num_rows, layout.width)
    write_saved_rows(spec, adapter.tensors, rows_rD)
    problems = []
    blocks = adapter.spec.use_bdlora
    in_blocks = "" if blocks is None else f", one factor perhaps in {blocks.nblocks} blocks"
    for module in adapter.modules:
        expected = layout.linears.get(module)
        a_rK, b_Nr = adapter.factors(module, shape=expected or (0, 0))
        found, r = (a_rK.shape[1], b_Nr.shape[0]), adapter.spec.rank_of(module)
        if expected is None or found != expected or a_rK.shape[0] != r or b_Nr.shape[1] != r:
            problems.append(
                Problem(
                    where=f"{WEIGHTS_FILE}: {module}",
                    found=f"A {tuple(a_rK.shape)} and B {tuple(b_Nr.shape)}",
                    allowed="no such linear in this model"
                    if expected is None
                    else f"r {r}, widths {expected}{in_blocks}",
                    hint="Use the base model that the adapter was trained on.",
                )
            )
            continue
        columns = layout.columns[module]
        rows_rD[:r, columns.a] = a_rK
        rows_rD[:r, columns.b] = b_Nr.T
        if adapter.spec.use_dora:
            rows_rD[adapter.spec.magnitude_row, columns.b] = adapter.magnitude(module)
    if problems:
        # they have one cause: an adapter of another model misfits in every linear
        others = f", the first of {len(problems)} linears that do not fit" if len(problems) > 1 else ""
        raise InputError(replace(problems[0], found=f"{problems[0].found}{others}"))
    return rows_rD


def weight_parts(layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor) -> Iterator[bytes | memoryview]:
    """Yield the parts of the file of :func:`serialised_weights`, one after the other, the same bytes.

    safetensors' own writer makes two copies of an adapter, of which an 8B model's are 400 MB, while it holds the
    interpreter.
    """
    if spec.use_vera is not None:
        yield serialised_weights(layout, spec, weights_rD)
        return
    tensors = dict(sorted(peft_tensors(layout, spec, weights_rD).items()))
    sizes = {name: ("F32", tensor.shape, tensor.nbytes) for name, tensor in tensors.items()}
    yield safetensors_header(sizes, metadata={"format": "pt"})
    for tensor in tensors.values():
        yield tensor.reshape(-1).view(torch.uint8).numpy().data


def serialised_weights(layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor) -> bytes:
    file = save(peft_tensors(layout, spec, weights_rD), metadata={"format": "pt"})
    return file if spec.use_vera is None else with_width(file, layout)


def read_adapter(directory: Path) -> PeftAdapter:
    """Read an adapter directory.

    Raises:
        InputError: a file is missing or damaged, or the adapter is of a kind that is not plain LoRA.
    """
    config_path, weights_path = directory / CONFIG_FILE, directory / WEIGHTS_FILE
    problems = [
        Problem(where=str(path), found="no such file", allowed="a PEFT LoRA adapter", hint="Name an adapter directory.")
        for path in (config_path, weights_path)
        if not path.is_file()
    ]
    if problems:
        raise InputError(problems)
    try:
        config = dict(**json.loads(config_path.read_text(encoding="utf-8")))
        with safe_open(weights_path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (TypeError, ValueError, SafetensorError) as error:
        raise InputError(
            Problem(
                where=str(weights_path if isinstance(error, SafetensorError) else config_path),
                found=f"a damaged file ({error})",
                allowed="readable adapter files",
                hint=(
                    "Export the adapter again; if it is the best of a run, `cohort resume` that run, which writes it "
                    "again."
                ),
            )
        ) from error
    _require_supported(config, where=str(config_path))
    if is_vera(config):
        rank = int(_number(config, "r", where=str(config_path)))
        return PeftAdapter(
            spec=AdapterSpec(r=rank, lora_alpha=rank, lora_dropout=float(config.get("vera_dropout", 0.0))),
            tensors=tensors,
            projections=read_projections(config, tensors, metadata=metadata, where=str(weights_path)),
        )
    r, lora_alpha = (_number(config, key, where=str(config_path)) for key in ("r", "lora_alpha"))
    blocks = _block_diagonal(config.get("use_bdlora"), r=int(r), where=str(config_path))
    spec = AdapterSpec(
        r=int(r),
        lora_alpha=float(lora_alpha),
        lora_dropout=float(config.get("lora_dropout", 0.0)),
        use_rslora=bool(config.get("use_rslora", False)),
        use_bdlora=blocks,
        use_dora=bool(config.get("use_dora", False)),
        rank_pattern=tuple((key, int(r)) for key, r in (config.get("rank_pattern") or {}).items()),
        alpha_pattern=tuple((key, float(alpha)) for key, alpha in (config.get("alpha_pattern") or {}).items()),
        saved=read_saved_modules(config, tensors, where=str(weights_path)),
    )
    return PeftAdapter(spec=spec, tensors=with_single_experts(tensors, spec, config, where=str(weights_path)))


def _require_supported(config: Mapping[str, Any], *, where: str) -> None:
    """Raise InputError where an adapter is of a kind that cannot be read."""
    unsupported = ["lora_bias"] if config.get("lora_bias") else []
    unsupported += unsupported_modules(config)
    if changes_base(str(config.get("init_lora_weights")).lower()):
        # PEFT writes such an adapter for the base that its own factors were taken out of
        unsupported.append(f"init_lora_weights {config['init_lora_weights']}")
    if (config.get("peft_type") != "LORA" and not is_vera(config)) or unsupported:
        raise InputError(
            Problem(
                where=where,
                found=f"peft_type {config.get('peft_type')!r} with {', '.join(unsupported) or 'no extras'}",
                allowed="plain LoRA, or VeRA without biases; modules_to_save: embed_tokens, lm_head",
                hint="Use an adapter without these features; PEFT converts PiSSA and OLoRA when it saves with "
                "path_initial_model_for_weight_conversion.",
            )
        )


def _number(config: Mapping[str, Any], key: str, *, where: str) -> float:
    """Return a number of a configuration that no adapter can be read without."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(
            Problem(
                where=f"{where}: {key}",
                found="no such key" if key not in config else repr(value),
                allowed="a number",
                hint="Use the configuration that PEFT saved with the adapter.",
            )
        )
    return value


def _block_diagonal(section: Mapping[str, Any] | None, *, r: int, where: str) -> BlockDiagonal | None:
    """Return the block structure that ``use_bdlora`` of a configuration names; one block is plain LoRA."""
    nblocks = int((section or {}).get("nblocks", 1))
    if section is None or nblocks == 1:
        return None
    if nblocks < 1 or r % nblocks:
        raise InputError(
            Problem(
                where=where,
                found=f"use_bdlora with nblocks {nblocks} and r {r}",
                allowed="a number of blocks that divides r",
                hint="Export the adapter again.",
            )
        )
    return BlockDiagonal(
        nblocks=nblocks,
        target_modules_bd_a=tuple(section.get("target_modules_bd_a") or ()),
        target_modules_bd_b=tuple(section.get("target_modules_bd_b") or ()),
        match_strict=bool(section.get("match_strict", True)),
    )
