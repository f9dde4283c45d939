"""What the inputs of each linear look like to an adapter: E[z z^T] of z = A x, over given rows.

Shapes:  T rows of a stream · r rank · K input width · N output width
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank, aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import Sample
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder

__all__ = ["input_grams"]


class _Recorder:
    """A frozen product that also sums up z z^T of its inputs, for the blocks of each part."""

    def __init__(self, frozen: FrozenProduct, *, factors: Mapping[str, Sequence[tuple[slice, Tensor]]]) -> None:
        self._frozen, self._factors = frozen, factors
        self.in_features, self.out_features = frozen.in_features, frozen.out_features
        self.dtype, self.num_bytes = frozen.dtype, frozen.num_bytes
        self.num_used = 0
        self.sums: dict[str, Tensor] = {}

    def forward(self, x_TK: Tensor) -> Tensor:
        for name, blocks in self._factors.items():
            zs = [x_TK[: self.num_used, ins].double() @ a_rK.T for ins, a_rK in blocks]
            found = torch.stack([z_Tr.T @ z_Tr for z_Tr in zs]).cpu()
            self.sums[name] = self.sums[name] + found if name in self.sums else found
        return self._frozen.forward(x_TK)

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return self._frozen.grad_input(dy_TN)


@torch.no_grad()
def input_grams(
    decoder: Decoder,
    layout: AdapterLayout,
    spec: AdapterSpec,
    weights_rD: Tensor,
    *,
    input_blocks: Mapping[str, Sequence[slice]],
    samples: Sequence[Sample],
) -> dict[str, Tensor]:
    """Return, by linear, the mean of z z^T [blocks, r, r] over the rows of ``samples``, read with the adapter on.

    Args:
        input_blocks: The inputs of each block, by linear.
    """
    factors = {
        name: [(ins, weights_rD[:, columns.a][:, ins].to(decoder.device).double()) for ins in input_blocks[name]]
        for name, columns in layout.columns.items()
    }
    bank = AdapterBank(
        layout,
        num_slots=1,
        num_rank_rows=aligned_rank(spec.num_rows),
        device=decoder.device,
        dtype=weights_rD.dtype,
        compute_dtype=decoder.dtype,
    )
    slot = bank.insert(spec, AdapterState(weights=weights_rD))
    # kernels that know a weight's layout would not call the product
    with _recording(decoder, factors) as recorders, use_backend(Backend.REFERENCE):
        for sample in samples:
            batch = pack([SlotSample(slot=slot, sample=sample)], num_slots=1, device=decoder.device)
            for recorder in recorders:
                recorder.num_used = len(sample.tokens)
            decoder.forward(
                batch.tokens_T,
                positions_T=batch.positions_T,
                attention=PackedAttention(batch.sequence_offsets),
                lora=bank.context(batch.segments),
            )
    num_rows = sum(len(sample.tokens) for sample in samples)
    return {name: sums / num_rows for recorder in recorders for name, sums in recorder.sums.items()}


@contextmanager
def _recording(decoder: Decoder, factors: Mapping[str, Sequence[tuple[slice, Tensor]]]) -> Iterator[list[_Recorder]]:
    linears = [linear for layer in decoder.layers for linear in layer.linears]
    before = [linear.frozen for linear in linears]
    recorders = []
    for linear in linears:
        own = {part.name: factors[part.name] for part in linear.parts if part.name in factors}
        recorders.append(_Recorder(linear.frozen, factors=own))
        linear.frozen = recorders[-1]
    try:
        yield recorders
    finally:
        for linear, frozen in zip(linears, before, strict=True):
            linear.frozen = frozen
