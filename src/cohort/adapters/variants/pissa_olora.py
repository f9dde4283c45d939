"""Factors of a base weight that an adapter begins with: PiSSA's principal ones, OLoRA's orthonormal ones.

Shapes:  N output width · K input width · r rank
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PrincipalFactors", "principal_factors"]


@dataclass(frozen=True, kw_only=True)
class PrincipalFactors:
    """A0 [r, K] and B0 [N, r], float32 on the host: ``scale * B0 A0`` is the part of the base that is trained."""

    a_rK: Tensor
    b_Nr: Tensor


@torch.no_grad()
def principal_factors(weight_NK: Tensor, method: str, *, r: int, scale: float, seed: int) -> PrincipalFactors:
    """Return the factors that ``method`` begins with, as PEFT's ``pissa_init`` and ``olora_init`` compute them.

    ``pissa``: from the r largest singular values, ``A0 = sqrt(S / scale) U^T``, ``B0 = V sqrt(S / scale)``.
    ``pissa_niter_N``: the same from a randomised decomposition with N subspace iterations, which is a matter of seconds
    where the whole one takes minutes. Its random projection comes from ``seed``.
    ``olora``: B0 the first r columns of Q, A0 the first r rows of R; as in PEFT they are not divided by the scale.

    Decomposed in float32 (float64 stays) where the weight is.

    Raises:
        ValueError: the weight has no r singular values.

    Source: PiSSA (Meng et al. 2024), section 3; OLoRA (Buyukakyuz 2024), section 3.
    """
    most = min(weight_NK.shape)
    if r > most:
        raise ValueError(f"r {r} is more than the {most} singular values of a weight {tuple(weight_NK.shape)}")
    weight_NK = weight_NK if weight_NK.dtype == torch.float64 else weight_NK.float()
    if method == "olora":
        q_NM, r_MK = torch.linalg.qr(weight_NK)
        return PrincipalFactors(a_rK=_kept(r_MK[:r]), b_Nr=_kept(q_NM[:, :r]))
    if method == "pissa":
        v_NM, s_M, u_MK = torch.linalg.svd(weight_NK, full_matrices=False)
    else:
        # torch draws from the global generator, whose state a trial must neither read nor move
        with torch.random.fork_rng([weight_NK.device] if weight_NK.is_cuda else []):
            torch.manual_seed(seed)
            v_NM, s_M, u_KM = torch.svd_lowrank(weight_NK, r, niter=int(method.rpartition("_")[2]))
        u_MK = u_KM.T
    root_r = (s_M[:r] / scale).sqrt()
    return PrincipalFactors(a_rK=_kept(root_r[:, None] * u_MK[:r]), b_Nr=_kept(v_NM[:, :r] * root_r))


def _kept(factor: Tensor) -> Tensor:
    return factor.cpu().contiguous()
