"""Puts packed linears in place of a model's own, on the same storage, and lets its layers be computed again.

Shapes:  T rows · K input width · N output width
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cohort.adapters.linear import LinearPart, PackedLinear
from cohort.adapters.modules_to_save.saved_tables import own_embeddings
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.models.bridge.pass_state import current_pass
from cohort.models.bridge.structure import is_transposed
from cohort.models.weight_formats import WeightFormat

__all__ = ["AdaptedLinear", "adapt_linears", "mark_token_rows", "recompute_layers", "row_scale"]


class AdaptedLinear(nn.Module):
    """A linear of a model with the adapters of the pass; without any it is the frozen product.

    Attributes:
        packed: The product over the weight that the model came with.
        dtype: Of that weight: some models keep a router in float32.
    """

    def __init__(self, name: str, frozen: FrozenProduct, *, bias_N: Tensor | None, dtype: torch.dtype) -> None:
        """Compute ``frozen``, which adds ``bias`` as well."""
        super().__init__()
        self.dtype = dtype
        self._name, self._bias_N = name, bias_N
        self.in_features, self.out_features = frozen.in_features, frozen.out_features
        self.packed = PackedLinear(frozen, parts=(LinearPart(name=name, out_features=frozen.out_features),))

    @property
    def weight(self) -> Tensor:
        """The weight [N, K]: some modules look at its dtype or device, or multiply it themselves."""
        frozen = self.packed.frozen
        plain = getattr(frozen, "plain_weight_NK", None)
        if isinstance(plain, Tensor):
            return plain
        device = frozen.device if hasattr(frozen, "device") else torch.device("cpu")
        return dense_rows(frozen, slice(0, self.out_features), device=device)

    @property
    def bias(self) -> Tensor | None:
        return self._bias_N

    def forward(self, x: Tensor) -> Tensor:
        """Return y [..., N] of x [..., K]."""
        now = current_pass()
        rows_TK = x.reshape(-1, self.in_features)
        if now is not None and now.rows_seen is not None:
            now.rows_seen.setdefault(self._name, []).append(len(rows_TK))
        lora = None if now is None else now.lora
        if lora is not None and self._name not in lora.factors:
            lora = None
        y_TN = self.packed(rows_TK, lora)
        return y_TN.view(*x.shape[:-1], self.out_features)


@torch.no_grad()
def adapt_linears(model: nn.Module, names: Sequence[str], *, weight_format: WeightFormat) -> dict[str, AdaptedLinear]:
    """Replace the linears ``names`` of a model and return what stands there now, by name.

    A linear of a class of its own is replaced where it is a product and nothing else, and left where it is not.

    The weights are the model's own tensors where the format keeps weights as they are; else one weight at a time is
    there in both formats.
    """
    found = {}
    for name in names:
        parent, _, own = name.rpartition(".")
        holder = model.get_submodule(parent)
        linear: Any = holder.get_submodule(own)
        weight = linear.weight.detach()
        bias = None if linear.bias is None else linear.bias.detach()
        if is_transposed(linear):
            weight = weight.t().contiguous()
        elif type(linear) is not nn.Linear and not _is_product(linear):
            continue
        frozen = weight_format.freeze(weight, bias)
        found[name] = AdaptedLinear(name, frozen, bias_N=bias, dtype=weight.dtype)
        setattr(holder, own, found[name])
        del linear, weight
    return found


def _is_product(linear: Any) -> bool:
    rows_LK = torch.linspace(-1, 1, 3 * linear.in_features).view(3, -1).to(linear.weight)
    expected_LN = F.linear(rows_LK, linear.weight, linear.bias)
    # by another order of sums at most
    share = 1e-2 if linear.weight.dtype.itemsize == 2 else 1e-5
    return bool((linear(rows_LK) - expected_LN).norm() <= share * expected_LN.norm())


def mark_token_rows(embedding: Any) -> None:
    """Let the rows of the token table require a gradient in passes that want one, and be each slot's own where it is.

    The stream is then differentiable in the adapters although everything below them is constant.
    """
    scale = row_scale(embedding)

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], rows_1TD: Tensor) -> Tensor:
        now = current_pass()
        if now is None:
            return rows_1TD
        if now.wants_gradient and not rows_1TD.requires_grad:
            # a model may scale the rows in place, which a leaf forbids
            rows_1TD = rows_1TD.detach().requires_grad_() * 1
        if now.lora is None or not now.lora.saved:
            return rows_1TD
        assert scale is not None, "modules_to_save was refused"
        rows_TD = own_embeddings(
            rows_1TD.flatten(0, -2),
            inputs[0].flatten(),
            saved=now.lora.saved,
            segments=now.lora.segments,
            scale=scale,
            padding_id=embedding.padding_idx,
        )
        return rows_TD.view_as(rows_1TD)

    embedding.register_forward_hook(hook)


@torch.no_grad()
def row_scale(embedding: Any) -> float | None:
    """Return what an embedding multiplies the rows of its table by; None where it does something else with them."""
    weight_VD: Tensor = embedding.weight
    ids_L = torch.arange(min(8, len(weight_VD)), device=weight_VD.device)
    rows_LD, found_LD = F.embedding(ids_L, weight_VD), embedding(ids_L)
    # as Gemma's table has it, rounded to the dtype of the rows
    own = getattr(embedding, "embed_scale", 1.0)
    for scale in (1.0, torch.as_tensor(own).to(weight_VD.dtype).item()):
        if found_LD.shape == rows_LD.shape and torch.equal(found_LD, rows_LD * scale):
            return float(scale)
    return None


def recompute_layers(layers: nn.ModuleList) -> None:
    """Let each layer keep its inputs alone in passes that recompute."""
    for layer in layers:
        layer.forward = _recomputable(layer.forward)


def _recomputable(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        now = current_pass()
        if now is None or not now.recomputes:
            return forward(*arguments, **options)
        # a backward pass may run in a thread of its own, which does not see the pass
        context = copy_context()

        def again(*given: Any, **named: Any) -> Any:
            return context.copy().run(forward, *given, **named)

        return checkpoint(again, *arguments, use_reentrant=False, preserve_rng_state=False, **options)

    return run
