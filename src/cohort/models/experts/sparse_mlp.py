"""The feed-forward block of a layer with experts: a router picks a few for each token, and weighs what they give.

Shapes:  T rows of the stream · E experts · J experts of a token · D hidden width
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from cohort.adapters.linear import LinearPart, LoraContext, PackedLinear
from cohort.kernels.exact_product import AgreedShapes
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.models.experts.expert_block import ExpertBlock
from cohort.models.experts.mixture import MixtureOfExperts
from cohort.models.experts.stacked_weights import StackedWeights
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["SparseMlp"]


class SparseMlp:
    """A frozen router over frozen experts, with the adapters of each token's own trial on the experts.

    Attributes:
        num_bytes: Of router and experts.
    """

    def __init__(
        self,
        mixture: MixtureOfExperts,
        *,
        router_ED: Tensor,
        up: StackedWeights,
        down: StackedWeights,
        activation: Activation,
    ) -> None:
        self._mixture = mixture
        self._router = FrozenLinear(router_ED)
        self._scores = PackedLinear(self._router, parts=(LinearPart(name="", out_features=mixture.num_experts),))
        self.block = ExpertBlock(
            up=up, down=down, activation=lambda x_PN: gated_activation(x_PN, activation=activation)
        )
        self.num_bytes = router_ED.nbytes + up.weight_ENK.nbytes + down.weight_ENK.nbytes

    def __call__(self, x_TD: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor:
        """Return y [T, D]; without ``lora`` the frozen block alone. Nothing quantises its input, so no codes come."""
        assert codes is None, "experts are kept as they are stored"
        index_TJ, weights_TJ = self.route(x_TD)
        return self.block(x_TD, index_TJ, weights_TJ, lora=lora, pads=True)

    def apart(self, x_TD: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor:
        """Return what a call does: terms are added where experts are computed."""
        return self(x_TD, lora, codes=codes)

    def route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's experts [T, J], by falling probability, and their weights [T, J] in float32.

        A row's own numbers decide. No expert has a capacity, so no token is dropped. Gradients pass through the
        weights to the layers below; the router is frozen.
        """
        scores_TE = F.softmax(self._scores(x_TD, None).float(), dim=-1)
        weights_TJ, index_TJ = scores_TE.topk(self._mixture.experts_per_token, dim=-1)
        if self._mixture.renormalises:
            weights_TJ = weights_TJ / self._sum(weights_TJ)
        return index_TJ, weights_TJ

    def _sum(self, weights_TJ: Tensor) -> Tensor:
        """Return the sum [T, 1] over a token's experts."""
        if weights_TJ.is_cuda and not self.block.is_exact:
            return weights_TJ.sum(dim=-1, keepdim=True)
        # by additions whose order no other row can change
        total_T1: Tensor = weights_TJ[:, :1]
        for place in range(1, weights_TJ.shape[1]):
            total_T1 = total_T1 + weights_TJ[:, place : place + 1]
        return total_T1

    def use_exact(self, *, exact: bool, agreed: AgreedShapes | None) -> None:
        """Give each row the same bits in any stream from now on, on a GPU, too; or no longer."""
        self._router.is_exact, self._router.agreed_shapes = exact, agreed
        self.block.is_exact = exact

    def is_fused(self, x_TD: Tensor, lora: LoraContext) -> bool:
        """Return that the block is never one node: router, experts and sum each keep what their backward pass reads."""
        del x_TD, lora
        return False
