"""LoRA linears of a PEFT model: one adapter by few plain products, dropout and several adapters by the packed linear.

Shapes:  T rows of the input · K input width · N output width · r rank · R rank rows of all adapters
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.integrations.peft_bases import adding_product, frozen_product, is_quantised, working_dtype
from cohort.integrations.peft_one_adapter import one_adapter
from cohort.kernels.dropout import module_key
from cohort.kernels.packed_linear import LoraPart, SlotTable, packed_linear
from cohort.kernels.segments import SegmentTable

__all__ = ["SiblingLayers"]

# rank rows are read in tiles of 16: the rest of the last one is zeros
_RANK_TILE = 16
_BASE = "__base__"


class SiblingLayers:
    """One LoRA linear, or several that a model calls with the same input one after the other.

    The first of them computes all; the others take what is there if they are called with that very input.
    """

    def __init__(self, layers: Mapping[str, Any]) -> None:
        self._layers = tuple(layers.values())
        self._keys = tuple(module_key(name) for name in layers)
        # input, gradient mode, and what is not taken yet by place
        self._pending: tuple[Tensor, bool, dict[int, Tensor]] | None = None

    def forward(self, place: int, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Take the place of the forward of layer ``place``, a ``peft.tuners.lora.layer.Linear``."""
        layer = self._layers[place]
        names = options.get("adapter_names")
        dtype = working_dtype(layer.get_base_layer(), x)
        others = {key: value for key, value in options.items() if key != "adapter_names" and value is not None}
        if dtype is None or arguments or others or layer.disable_adapters or layer.merged:
            result: Tensor = type(layer).forward(layer, x, *arguments, **options)
            return result
        if names is not None:
            if _has_variants(layer, names) or len(names) != x.shape[0] or layer.training:
                result = type(layer).forward(layer, x, **options)
                return result
            return self._mixed(place, x, names, dtype=dtype)
        if _active(layer) is None:
            result = type(layer).forward(layer, x, **options)
            return result
        return self._one_adapter(place, x, dtype=dtype)

    def _one_adapter(self, place: int, x: Tensor, *, dtype: torch.dtype) -> Tensor:
        if self._pending is not None:
            source, had_grad, outputs = self._pending
            if source is x and had_grad == torch.is_grad_enabled() and place in outputs:
                taken = outputs.pop(place)
                # the last one frees the input
                self._pending = self._pending if outputs else None
                return taken
        places = range(len(self._layers)) if self._are_alike(x) else (place,)
        layers = [self._layers[index] for index in places]
        name = _active(self._layers[place])
        assert name is not None, "forward() takes PEFT's way without one active adapter"
        dropped = _dropout(layers[0], name) > 0
        if dropped:
            found = self._dropped(x, layers, name, places=places, dtype=dtype)
        else:
            found = _undropped(x, layers, name, dtype=dtype)
        outputs = dict(zip(places, found, strict=True))
        mine = outputs.pop(place)
        self._pending = (x, torch.is_grad_enabled(), outputs) if outputs else None
        return mine

    def _dropped(
        self, x: Tensor, layers: Sequence[Any], name: str, *, places: Sequence[int], dtype: torch.dtype
    ) -> list[Tensor]:
        """Return the outputs of layers under dropout, in one product."""
        num_rows = x[..., 0].numel()
        # from torch's generator, whose state gradient checkpointing puts back before it computes again
        keys = torch.randint(0, 1 << 32, (num_rows,), device=x.device)
        starts = [0, *itertools.accumulate(layer.get_base_layer().out_features for layer in layers)]
        parts = [
            _part(layer, [name], dtype=dtype, column_start=start, key=self._keys[index])
            for layer, start, index in zip(layers, starts, places, strict=False)
        ]
        slots = SlotTable(
            row_starts=(0,),
            ranks=(layers[0].lora_A[name].weight.shape[0],),
            scales=(float(layers[0].scaling[name]),),
            dropouts=(_dropout(layers[0], name),),
        )
        segments = SegmentTable.from_samples([num_rows], slots=[0], num_slots=1, num_rows=num_rows)
        y_TN = _product(x.reshape(num_rows, -1), layers, parts, slots, segments, keys, dtype=dtype)
        widths = [stop - start for start, stop in itertools.pairwise(starts)]
        # split, not sliced: the gradients are joined once, not padded and added
        return [own.reshape(*x.shape[:-1], -1) for own in y_TN.split(widths, dim=1)]

    def _mixed(self, place: int, x: Tensor, names: Sequence[str], *, dtype: torch.dtype) -> Tensor:
        """Return the output of a batch whose entry i is the adapter ``names[i]``'s, in one product."""
        layer = self._layers[place]
        known = [name for name in dict.fromkeys(names) if name != _BASE and name in layer.lora_A]
        slot_of = {name: slot for slot, name in enumerate(known)}
        slots = [slot_of.get(name, -1) for name in names]
        # the rows of no adapter stand last
        order = sorted(range(len(names)), key=lambda index: slots[index] if slots[index] >= 0 else len(known))
        length = math.prod(x.shape[1:-1])
        places = torch.tensor(order, device=x.device)
        x_TK = x.index_select(0, places).reshape(len(names) * length, -1)
        ranks = [layer.lora_A[name].weight.shape[0] for name in known]
        starts = [0, *itertools.accumulate(-(-r // _RANK_TILE) * _RANK_TILE for r in ranks)]
        table = SlotTable(
            row_starts=tuple(starts[:-1]),
            ranks=tuple(ranks),
            scales=tuple(float(layer.scaling[name]) for name in known),
            dropouts=(0.0,) * len(known),
        )
        segments = SegmentTable.from_samples(
            [length] * len(names), slots=[slots[index] for index in order], num_slots=len(known), num_rows=len(x_TK)
        )
        parts = [_part(layer, known, dtype=dtype, column_start=0, key=0)] if known else []
        y_TN = _product(x_TK, [layer], parts, table, segments, None, dtype=dtype)
        back = torch.empty_like(places)
        back[places] = torch.arange(len(names), device=x.device)
        return y_TN.reshape(*x.shape[:-1], -1).index_select(0, back)

    def _are_alike(self, x: Tensor) -> bool:
        """Return whether one product serves all siblings for ``x``: one adapter, of one rank, scale and dropout."""
        if len(self._layers) == 1:
            return False
        found = set()
        for layer in self._layers:
            name = None if layer.disable_adapters or layer.merged else _active(layer)
            if name is None or working_dtype(layer.get_base_layer(), x) is None:
                return False
            a_rK, b_Nr = layer.lora_A[name].weight, layer.lora_B[name].weight
            found.add((name, len(a_rK), a_rK.dtype, b_Nr.dtype, float(layer.scaling[name]), _dropout(layer, name)))
        return len(found) == 1


def _undropped(x: Tensor, layers: Sequence[Any], name: str, *, dtype: torch.dtype) -> list[Tensor]:
    """Return the outputs of layers of one adapter."""
    bases = [layer.get_base_layer() for layer in layers]
    factors = [factor for layer in layers for factor in (layer.lora_A[name].weight, layer.lora_B[name].weight)]
    with torch.autocast(x.device.type, enabled=False):
        outputs = one_adapter(
            x.reshape(-1, x.shape[-1]).to(dtype),
            products=[adding_product(base, dtype=dtype) for base in bases],
            factors=factors,
            scale=float(layers[0].scaling[name]),
        )
    # quantised layers return what they were given, under autocast as well
    kept = x.dtype if is_quantised(bases[0]) else dtype
    return [y_TN.view(*x.shape[:-1], -1).to(kept) for y_TN in outputs]


def _active(layer: Any) -> str | None:
    """Return the one adapter that a layer adds; None where there are none or several, or it is a variant of LoRA."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    return active[0] if len(active) == 1 and not _has_variants(layer, active) else None


def _has_variants(layer: Any, names: Sequence[str]) -> bool:
    variants = getattr(layer, "lora_variant", {})
    return any(name in variants or getattr(layer, "lora_bias", {}).get(name, False) for name in names)


def _dropout(layer: Any, name: str) -> float:
    module = layer.lora_dropout[name]
    return float(module.p) if isinstance(module, torch.nn.Dropout) and module.training else 0.0


def _part(layer: Any, names: Sequence[str], *, dtype: torch.dtype, column_start: int, key: int) -> LoraPart:
    """Return the factors of the named adapters one below the other, each padded to whole tiles."""
    a_rows, b_rows = [], []
    for name in names:
        a_rK, b_Nr = layer.lora_A[name].weight, layer.lora_B[name].weight
        padding = (0, 0, 0, -a_rK.shape[0] % _RANK_TILE)
        # PEFT keeps factors in float32 with a bf16 model; products run in the stream's dtype
        a_rows.append(F.pad(a_rK.to(dtype), padding))
        b_rows.append(F.pad(b_Nr.to(dtype).t().contiguous(), padding))
    a_RK, b_RN = (rows[0] if len(rows) == 1 else torch.cat(rows) for rows in (a_rows, b_rows))
    return LoraPart(a_RK=a_RK, b_RN=b_RN, column_start=column_start, module_key=key)


def _product(
    x_TK: Tensor,
    layers: Sequence[Any],
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    bases = [layer.get_base_layer() for layer in layers]
    # the backward pass runs outside of autocast, so neither may run inside of it
    with torch.autocast(x_TK.device.type, enabled=False):
        y_TN = packed_linear(
            x_TK.to(dtype),
            frozen=frozen_product(bases, dtype=dtype),
            parts=parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
        )
    # quantised layers return what they were given, under autocast as well
    return y_TN.to(x_TK.dtype) if is_quantised(bases[0]) else y_TN
