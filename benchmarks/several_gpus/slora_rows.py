"""S-LoRA's division of plain LoRA for decoding, in the engine's own kernels: the baseline of divided serving.

Between the two kernels of a linear's LoRA terms, ranks exchange: they gather where the base divides outputs, and sum
where it divides inputs. Prompts are computed without adapters: what is timed is decoding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext, PackedLinear
from cohort.adapters.sharding import Parallelism, parallelism_of
from cohort.kernels.backend import Backend, implementation
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.packed_linear import PaddedRows
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.models.decoder import Decoder
from cohort.models.decoder_layer import DecoderLayer
from cohort.ranks.tensor.groups import RankGroup

__all__ = ["attach_slora_rows", "replace_linears", "slora_layout"]


def slora_layout(layout: AdapterLayout, *, size: int) -> AdapterLayout:
    """Return the shapes of a rank's factors; of A's rank rows a column-parallel linear uses 1 / size."""
    return AdapterLayout(
        {
            name: (ins if parallelism_of(name) is Parallelism.COLUMN else ins // size, outs // size)
            for name, (ins, outs) in layout.linears.items()
        }
    )


def attach_slora_rows(decoder: Decoder, group: RankGroup) -> None:
    """Let every linear of the decoder exchange between its LoRA terms' kernels."""
    for layer in decoder.layers:
        replace_linears(layer, lambda plain: _SloraRows(plain, group))


def replace_linears(layer: DecoderLayer, by: Callable[[PackedLinear], PackedLinear]) -> None:
    """Put other linears in place of a layer's: ``by`` gets each and returns what replaces it."""
    layer._qkv, layer._output = by(layer._qkv), by(layer._output)
    layer.mlp.gate_up, layer.mlp.down = by(layer.mlp.gate_up), by(layer.mlp.down)
    layer.mlp.is_composed = True
    layer.linears = (layer._qkv, layer._output, layer.mlp.gate_up, layer.mlp.down)


class _SloraRows(PackedLinear):
    def __init__(self, plain: PackedLinear, group: RankGroup) -> None:
        super().__init__(plain.frozen, parts=plain.parts)
        self._group = group
        self._kind = parallelism_of(self.parts[0].name)

    def apart(self, x_TK: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor:
        return self(x_TK, lora, codes=codes)

    def input_room(self, like: Tensor, lora: LoraContext | None) -> PaddedRows | None:
        del like, lora
        return None

    @torch.no_grad()
    def __call__(
        self,
        x_TK: Tensor,
        lora: LoraContext | None,
        *,
        room: PaddedRows | None = None,
        codes: Fp8Rows | None = None,
    ) -> Tensor:
        del room, codes
        if lora is None or not isinstance(lora.tables, RowTables):
            return self.frozen.forward(x_TK)
        kernels = implementation("packed_linear.rows", Backend.TRITON)
        is_column = self._kind is Parallelism.COLUMN
        parts, shares = self.adapted(lora), self._group.size if is_column else 1
        terms = kernels.start_row_terms(x_TK, parts=parts, tables=lora.tables, shares=shares)
        y_TN = self.frozen.forward(x_TK)
        # the outputs of a row-parallel linear are partial sums: each rank adds the term of its own slice
        width = y_TN.shape[1] // self._group.size
        own_TN = y_TN if is_column else y_TN[:, self._group.rank * width : (self._group.rank + 1) * width]
        for some in terms:
            some.exchange(lambda z_TPR: self._exchanged(z_TPR, lora))
            some.add_to(own_TN)
        return y_TN

    def _exchanged(self, z_TPR: Tensor, lora: LoraContext) -> Tensor:
        # in the model's dtype, as its own sums are, so that small ones take the kernel that those take
        own_TPR = z_TPR.to(self.frozen.dtype)
        if self._kind is Parallelism.COLUMN:
            # gathered as a sum in which each rank has its own place: the one-shot kernel knows sums alone, and is
            # faster than a gather by NCCL; all adapters of the benchmark have one rank
            share = max(lora.slots.ranks) // self._group.size
            before = self._group.rank * share
            after = z_TPR.shape[2] - before - share
            own_TPR = torch.nn.functional.pad(own_TPR[:, :, :share], (before, after))
        return self._group.all_reduce(own_TPR).to(z_TPR.dtype)
