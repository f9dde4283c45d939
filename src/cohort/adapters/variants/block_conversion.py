"""LoRA to BD-LoRA: block by block the best approximation of the adapter's product, or the product itself.

Each block of the product D = B A is a low-rank matrix of its own: where B gets blocks, block b is rows of B times A;
where A does, it is B times columns of A. The best rank k of a block, weighted by C = E[x x^T] of its inputs, is
``U_k U_k^T D_b`` with U_k the first left singular vectors of ``D_b C^(1/2)`` (Eckart and Young; C is the identity where
no inputs are given). They follow from B and the r x r matrix A C A^T, so nothing of full size is decomposed and C is
never formed. The paper leaves the conversion open. Computed in float64.

Shapes:  r rank of the LoRA adapter · R total rank of the blocks · n blocks · k = R / n · K input width · N output width
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal, BlockFactor

__all__ = ["Conversion", "block_spectra", "convert_to_blocks", "input_blocks", "spec_with_blocks"]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """An adapter with blocks, and how far it is from the one it was made of.

    Attributes:
        spec: With the blocks, the new rank, and the alpha that keeps the scale.
        weights_RD: Its rank rows.
        errors: By linear, the norm of what was lost over the norm of the product, in the metric that was minimised.
    """

    spec: AdapterSpec
    weights_RD: Tensor
    errors: Mapping[str, float]

    @property
    def is_exact(self) -> bool:
        """Whether no linear lost more than rounding."""
        return max(self.errors.values(), default=0.0) < 1e-6

    @property
    def mean_error(self) -> float:
        """Return the root mean square of the errors of all linears."""
        return math.sqrt(sum(error**2 for error in self.errors.values()) / max(1, len(self.errors)))


def spec_with_blocks(spec: AdapterSpec, blocks: BlockDiagonal | None, *, r: int) -> AdapterSpec:
    """Return ``spec`` with other blocks and rank, and the alpha that leaves the scale as it is."""
    grown = math.sqrt(r / spec.r) if spec.use_rslora else r / spec.r
    return replace(spec, r=r, lora_alpha=spec.lora_alpha * grown, use_bdlora=blocks)


def convert_to_blocks(
    layout: AdapterLayout,
    spec: AdapterSpec,
    weights_rD: Tensor,
    *,
    blocks: BlockDiagonal,
    r: int,
    grams: Mapping[str, Tensor] | None = None,
) -> Conversion:
    """Return the adapter with ``blocks`` and total rank ``r`` that is nearest to a given one.

    Exact where ``r >= nblocks * spec.r``, and where the adapter has a multiple of as many blocks already.

    Args:
        weights_rD: Its rank rows, zeros outside of its own blocks included.
        grams: By linear, for each of its :func:`input_blocks`, ``E[z z^T]`` [r, r] of ``z = A x`` over the inputs x of
            the block. What is lost is then measured on such inputs, correlations between blocks left out.
    """
    own = spec.use_bdlora
    if own is not None and r == spec.r and own.nblocks % blocks.nblocks == 0 and _same_lists(own, blocks):
        # neighbouring blocks together are one block
        coarser = spec_with_blocks(spec, blocks, r=r)
        return Conversion(spec=coarser, weights_RD=weights_rD.clone(), errors=dict.fromkeys(layout.linears, 0.0))
    weights_RD = torch.zeros(r, layout.width, dtype=weights_rD.dtype)
    errors = {}
    for name, columns in layout.columns.items():
        a_rK, b_Nr = weights_rD[:, columns.a].double(), weights_rD[:, columns.b].double().T
        own_grams = None if grams is None else grams[name].double()
        factor = blocks.factor_of(name)
        lost = total = 0.0
        k = r // blocks.nblocks if factor is not None else r
        for index, (rows, ins, outs) in enumerate(_blocks(blocks, name, layout.linears[name], r=r)):
            gram_rr = None if own_grams is None else own_grams[index % len(own_grams)]
            down_kK, up_Nk, spectrum = _nearest(a_rK[:, ins], b_Nr[outs], rank=k, gram_rr=gram_rr)
            a_columns = slice(columns.a.start + ins.start, columns.a.start + ins.stop)
            b_columns = slice(columns.b.start + outs.start, columns.b.start + outs.stop)
            weights_RD[rows, a_columns] = down_kK.to(weights_RD.dtype)
            weights_RD[rows, b_columns] = up_Nk.T.to(weights_RD.dtype)
            lost += float(spectrum[k:].square().sum())
            total += float(spectrum.square().sum())
        errors[name] = math.sqrt(lost / total) if total > 0 else 0.0
    return Conversion(spec=spec_with_blocks(spec, blocks, r=r), weights_RD=weights_RD, errors=errors)


def block_spectra(layout: AdapterLayout, weights_rD: Tensor, *, blocks: BlockDiagonal) -> dict[str, Tensor]:
    """Return the singular values [n, r] of each block of each linear's product, largest first."""
    spectra = {}
    for name, columns in layout.columns.items():
        a_rK, b_Nr = weights_rD[:, columns.a].double(), weights_rD[:, columns.b].double().T
        parts = _blocks(blocks, name, layout.linears[name], r=blocks.nblocks)
        found = [_core(a_rK[:, ins], b_Nr[outs], gram_rr=None)[1] for _, ins, outs in parts]
        # a block with fewer outputs than ranks has fewer values
        spectra[name] = torch.stack([F.pad(values, (0, a_rK.shape[0] - len(values))) for values in found])
    return spectra


def input_blocks(blocks: BlockDiagonal, name: str, shape: tuple[int, int]) -> list[slice]:
    """Return the inputs that each block of a linear reads; one slice where all blocks read the same."""
    found = [ins for _, ins, _ in _blocks(blocks, name, shape, r=blocks.nblocks)]
    return found if blocks.factor_of(name) is BlockFactor.A else found[:1]


def _same_lists(a: BlockDiagonal, b: BlockDiagonal) -> bool:
    return replace(a, nblocks=b.nblocks) == b


def _blocks(blocks: BlockDiagonal, name: str, shape: tuple[int, int], *, r: int) -> list[tuple[slice, slice, slice]]:
    """Return the rank rows, inputs and outputs of each block; one block where both factors are dense."""
    in_features, out_features = shape
    factor, n = blocks.factor_of(name), blocks.nblocks
    if factor is None:
        return [(slice(0, r), slice(0, in_features), slice(0, out_features))]
    found = []
    for index in range(n):
        rows = slice(index * r // n, (index + 1) * r // n)
        ins, outs = slice(0, in_features), slice(0, out_features)
        if factor is BlockFactor.A:
            ins = slice(index * in_features // n, (index + 1) * in_features // n)
        else:
            outs = slice(index * out_features // n, (index + 1) * out_features // n)
        found.append((rows, ins, outs))
    return found


def _core(a_rK: Tensor, b_Nr: Tensor, *, gram_rr: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the left singular vectors [N, r] and values [r] of ``B A C^(1/2)``; the Gram matrix is ``A C A^T``."""
    q_Nr, upper_rr = torch.linalg.qr(b_Nr)
    gram_rr = a_rK @ a_rK.T if gram_rr is None else gram_rr
    values, vectors = torch.linalg.eigh((gram_rr + gram_rr.T) / 2)
    u_rr, spectrum, _ = torch.linalg.svd(upper_rr @ vectors * values.clamp_min(0).sqrt())
    return q_Nr @ u_rr, spectrum


def _nearest(a_rK: Tensor, b_Nr: Tensor, *, rank: int, gram_rr: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors [k, K] and [N, k] of the nearest product of rank ``rank``, and the singular values."""
    k = min(rank, a_rK.shape[0])
    u_Nr, spectrum = _core(a_rK, b_Nr, gram_rr=gram_rr)
    if rank >= a_rK.shape[0]:
        # nothing is lost: the factors themselves, without the rounding of a decomposition
        down_kK, up_Nk = a_rK, b_Nr
    else:
        u_Nk = u_Nr[:, :k]
        projected_kK = (u_Nk.T @ b_Nr) @ a_rK
        # both factors of one size, as training left them: a rank that is empty stays zero in both
        ups = spectrum[:k].sqrt()
        downs = torch.where(ups > 0, 1 / ups.clamp_min(1e-300), ups)
        down_kK, up_Nk = projected_kK * downs[:, None], u_Nk * ups
    missing = rank - down_kK.shape[0]
    if missing:
        down_kK = torch.cat([down_kK, down_kK.new_zeros(missing, down_kK.shape[1])])
        up_Nk = torch.cat([up_Nk, up_Nk.new_zeros(up_Nk.shape[0], missing)], dim=1)
    return down_kK, up_Nk, spectrum
