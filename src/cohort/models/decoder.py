"""The decoder: one frozen model over a packed token stream; its family says what it computes.

Shapes:  T rows of the stream · D hidden width · H query heads · G key-value heads · E head width · F MLP width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cohort.adapters.linear import LinearPart, LoraContext, PackedLinear
from cohort.adapters.mlp import PackedMlp
from cohort.core.errors import InputError, Problem
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.kernels.packed_linear.frozen_product import can_be_exact, product_seconds
from cohort.kernels.rms_norm import add_rms_norm, fork_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope, split_and_rotate
from cohort.models.attention import AttentionContext, PackedAttention
from cohort.models.config import DecoderConfig
from cohort.models.rotary import RotaryTable
from cohort.models.streaming.layer_passage import enter_layer, leave_layer
from cohort.models.streaming.weight_ring import WeightRing

__all__ = ["Decoder", "DecoderLayer", "TensorRegion"]


class TensorRegion(Protocol):
    """Where the linears of a rank's shard begin and end: between them each rank computes its own part."""

    def enter(self, x_TD: Tensor) -> Tensor:
        """Return x, which all ranks have; its gradient is the sum of theirs."""
        ...

    def leave(self, y_TD: Tensor) -> Tensor:
        """Return the sum of what the ranks computed; its gradient is that of each."""
        ...


class Decoder:
    """A frozen decoder-only transformer.

    Attributes:
        part: The layers of the model that it has, by number; all but in a stage of a pipeline.
        linears: ``(in_features, out_features)`` of each adaptable linear by full module path, in order of use.
        num_bytes: Bytes of all weights, shared storage counted once; spare columns (below 1 %) are not counted. With a
            ring, its buffers and the streamed layers in its source are counted, wherever that is.
        ring: Fetches the layers that are not resident; None where all are.
        is_recorded: Whether a CUDA graph may know where the weights are: from then on none is moved.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        tensors: Mapping[str, Tensor],
        products: Mapping[str, FrozenProduct],
        ring: WeightRing | None = None,
        region: TensorRegion | None = None,
        part: range | None = None,
    ) -> None:
        """Build from what :func:`~cohort.models.weights.freeze_weights` gives.

        Args:
            tensors: The token table ``embed`` and the norms, by their names in the checkpoint's layout.
            products: The ``head`` and, as ``layers.N.qkv``, the linears of the layers. Their format is their own.
            ring: Fetches the layers that are not resident.
            region: Joins the shards of several ranks around attention and MLP; ``config`` and products are a rank's.
            part: Layers of a stage of a pipeline, which has the token table only where they begin and the final norm
                and the head only where they end; None for all.
        """
        self.config, self.ring = config, ring
        self.part: Sequence[int] = range(config.num_layers) if part is None else part
        self._table_VD = tensors.get("embed")
        self.layers = tuple(
            DecoderLayer(config, layer, tensors=tensors, products=products, region=region) for layer in self.part
        )
        self._norm_D = _norm_weight(tensors["norm"], config) if "norm" in tensors else None
        self._head = products.get("head")
        first = next(iter(tensors.values()))
        self.dtype, self.device = first.dtype, first.device
        # rounded to the stream's dtype before it multiplies, as the families' own code does
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
        self.is_recorded = False
        self._is_divided = region is not None or part is not None
        self.num_bytes = sum(tensor.nbytes for tensor in tensors.values()) + sum(
            product.num_bytes
            for name, product in products.items()
            # a tied head is the token table
            if name != "head" or not config.tie_word_embeddings or "embed" not in tensors
        )
        self.num_bytes += 0 if ring is None else ring.num_bytes
        self._rotary = RotaryTable(config.rotary, dtype=self.dtype, device=self.device)
        self.linears: dict[str, tuple[int, int]] = {
            part.name: (linear.frozen.in_features, part.out_features)
            for layer in self.layers
            for linear in layer.linears
            for part in linear.parts
        }

    @property
    def products(self) -> tuple[FrozenProduct, ...]:
        """Every frozen product: those of the layers in their order, then the head where it is here."""
        found = [linear.frozen for layer in self.layers for linear in layer.linears]
        return (*found, *(() if self._head is None else (self._head,)))

    def use_exact_products(self, *, exact: bool = True) -> None:
        """Give each row the same bits in any stream from now on, on a GPU, too; or, without ``exact``, no longer.

        Raises:
            InputError: a format of weights, or a rule of attention, has no such form.
        """
        if exact:
            self._require_exact_forms()
        for layer in self.layers:
            frozen = layer.mlp.gate_up.frozen
            if exact or (can_be_exact(frozen) and frozen.is_exact):
                # the fused block is chosen by the ranks of a pack
                layer.mlp.is_composed = exact
        for product in self.products:
            if can_be_exact(product):
                product.is_exact = exact

    def _require_exact_forms(self) -> None:
        other = next((product for product in self.products if not can_be_exact(product)), None)
        if other is not None:
            weights = "weights in 16 or 32 bits, int8 or nf4"
            raise _not_exact(found=f"frozen products of {type(other).__name__}", allowed=weights)
        if self._is_divided:
            whole = "strategy: replicas | adapter_parallel"
            raise _not_exact(found="a model whose layers are divided among several GPUs", allowed=whole)
        if self.config.pads_attention:
            what = f"attention of {self.config.family} that is computed in padded batches on a GPU"
            raise _not_exact(found=what, allowed="attention without soft-capped scores")

    def weight_of(self, name: str) -> Tensor:
        """Return the base weight [N, K] of one linear, given by its full path, as a tensor of its own.

        Raises:
            KeyError: the decoder has no such linear.
        """
        for index, layer in zip(self.part, self.layers, strict=True):
            for linear in layer.linears:
                if (columns := linear.columns_of(name)) is not None:
                    if self.ring is not None and index in self.ring:
                        self.ring.need(index)
                    return dense_rows(linear.frozen, columns, device=self.device)
        raise KeyError(name)

    @property
    def head(self) -> FrozenProduct:
        """Product to vocabulary logits; shares the token table's storage where the checkpoint ties them."""
        assert self._head is not None, "the last stage has the head"
        return self._head

    @property
    def product_seconds(self) -> float:
        """Seconds that the layers' products take, over those of plain weights, about."""
        found = [product_seconds(linear.frozen) for layer in self.layers for linear in layer.linears]
        return sum(found) / len(found)

    def embed(self, tokens_T: Tensor) -> Tensor:
        assert self._table_VD is not None, "the first stage has the token table"
        rows_TD = F.embedding(tokens_T, self._table_VD)
        return rows_TD if self._embedding_scale == 1.0 else rows_TD * self._embedding_scale

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Return the vocabulary logits [T, V] of final hidden states; outside autograd."""
        logits_TV = self.head.forward(hidden_TD)
        cap = self.config.logit_cap
        return logits_TV if cap is None else cap * torch.tanh(logits_TV / cap)

    def forward(
        self,
        tokens_T: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool = False,
    ) -> Tensor:
        """Return hidden states [T, D] after the final norm.

        With ``lora`` and gradients enabled the stream itself requires a gradient, so that the result is differentiable
        in the adapters although the frozen rows below them are constants.

        Args:
            positions_T: int64 [T], each below ``attention.num_positions`` (any small number in rows of no sequence).
            lora: The resident adapters; None for the frozen model alone.
            gradient_checkpointing: Keep only the input of each layer and recompute the layer in the backward pass: the
                same bits for one more forward pass of the layers. No effect without gradients.

        Raises:
            InputError: a position that the model's rotary scaling does not cover.
        """
        residual_TD = self.embed(tokens_T)
        if lora is not None and torch.is_grad_enabled():
            residual_TD.requires_grad_()
        residual_TD, delta_TD = self.run_layers(
            residual_TD,
            positions_T=positions_T,
            attention=attention,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
        )
        return self.final_norm(residual_TD, delta_TD)

    def run_layers(
        self,
        residual_TD: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream behind the layers, and what the next norm adds to it; None behind no layer.

        The other arguments are those of :meth:`forward`.
        """
        cos_TE, sin_TE = self._rotary.lookup(positions_T, num_positions=attention.num_positions)
        shared = _SharedByLayers(cos_TE=cos_TE, sin_TE=sin_TE, attention=attention, lora=lora)
        delta_TD: Tensor | None = None
        gradient_checkpointing = gradient_checkpointing and torch.is_grad_enabled()
        for index, layer in zip(self.part, self.layers, strict=True):
            run = layer.recomputed if gradient_checkpointing else layer
            if self.ring is None or index not in self.ring:
                residual_TD, delta_TD = run(residual_TD, delta_TD, shared)
                continue
            residual_TD, delta_TD = enter_layer(self.ring, index, residual_TD, delta_TD)
            residual_TD, delta_TD = run(residual_TD, delta_TD, shared)
            residual_TD, delta_TD = leave_layer(self.ring, index, residual_TD, delta_TD)
        return residual_TD, delta_TD

    def final_norm(self, residual_TD: Tensor, delta_TD: Tensor | None) -> Tensor:
        assert self._norm_D is not None, "the last stage has the final norm"
        return _add_and_norm(residual_TD, delta_TD, weight_D=self._norm_D, eps=self.config.rms_norm_eps)[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class _SharedByLayers:
    """What every layer of one pass reads besides the stream: rotary angles [T, E], how rows attend, the adapters."""

    cos_TE: Tensor
    sin_TE: Tensor
    attention: AttentionContext
    lora: LoraContext | None


class DecoderLayer:
    """Attention and MLP, each behind its norm; the additions to the residual stream are fused into the norms.

    Attributes:
        linears: The packed linears, in order of use.
    """

    def __init__(
        self,
        config: DecoderConfig,
        index: int,
        *,
        tensors: Mapping[str, Tensor],
        products: Mapping[str, FrozenProduct],
        region: TensorRegion | None = None,
    ) -> None:
        self._config, self._region = config, region
        self._index = index
        self._rule = config.attention_rule(index)
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."

        def linear(name: str, **parts: int) -> PackedLinear:
            block = theirs + ("mlp." if name in ("gate_up", "down") else "self_attn.")
            named = tuple(LinearPart(name=block + key, out_features=n) for key, n in parts.items())
            return PackedLinear(products[ours + name], parts=named)

        def norm(name: str) -> Tensor | None:
            weight = tensors.get(ours + name)
            return None if weight is None else _norm_weight(weight, config)

        self._input_norm_D = _norm_weight(tensors[ours + "input_norm"], config)
        self._qkv = linear("qkv", q_proj=config.query_width, k_proj=config.kv_width, v_proj=config.kv_width)
        self._q_norm_E = norm("q_norm")
        self._k_norm_E = norm("k_norm")
        self._output = linear("output", o_proj=config.hidden_size)
        self._attention_post_norm_D = norm("attention_post_norm")
        self._mlp_norm_D = _norm_weight(tensors[ours + "mlp_norm"], config)
        self.mlp = PackedMlp(
            linear("gate_up", gate_proj=config.intermediate_size, up_proj=config.intermediate_size),
            linear("down", down_proj=config.hidden_size),
            activation=config.activation,
        )
        self._mlp_post_norm_D = norm("mlp_post_norm")
        self.linears = (self._qkv, self._output, self.mlp.gate_up, self.mlp.down)

    def replace_linears(self, by: Callable[[PackedLinear], PackedLinear]) -> None:
        """Put other linears in place of the layer's; each gets the one it replaces."""
        self._qkv, self._output = by(self._qkv), by(self._output)
        self.mlp.gate_up, self.mlp.down = by(self.mlp.gate_up), by(self.mlp.down)
        self.mlp.is_composed = True
        self.linears = (self._qkv, self._output, self.mlp.gate_up, self.mlp.down)

    def __call__(self, residual_TD: Tensor, delta_TD: Tensor | None, shared: _SharedByLayers) -> tuple[Tensor, Tensor]:
        """Return the residual stream and the MLP's output, which the next norm adds to it."""
        eps, codes = self._config.rms_norm_eps, self._qkv.code_room(residual_TD)
        x_TD, residual_TD = _add_and_norm(residual_TD, delta_TD, weight_D=self._input_norm_D, eps=eps, codes=codes)
        return self._blocks(x_TD, residual_TD, shared, codes)

    def recomputed(
        self, residual_TD: Tensor, delta_TD: Tensor | None, shared: _SharedByLayers
    ) -> tuple[Tensor, Tensor]:
        """Return the same bits as a call, keeping only the sum of both inputs until the backward pass.

        Nothing in a layer draws from a generator with a state (dropout is keyed by row), so a second forward pass is
        the first; gradients of the adapters are written by the backward pass alone, which runs once.
        """
        # the sum is a tensor of its own: kept are D values a row and layer, where both summands would be 2 D
        stream_TD = residual_TD if delta_TD is None else residual_TD + delta_TD

        def layer(stream_TD: Tensor) -> tuple[Tensor, Tensor]:
            eps, codes = self._config.rms_norm_eps, self._qkv.code_room(stream_TD)
            x_TD, same_TD = fork_rms_norm(stream_TD, weight_D=self._input_norm_D, eps=eps, codes=codes)
            return self._blocks(x_TD, same_TD, shared, codes)

        # a GPU's backward pass runs in a thread of its own, which does not see who forced a backend around the call
        context = copy_context()
        outputs: tuple[Tensor, Tensor] = checkpoint(
            lambda stream_TD: context.run(layer, stream_TD), stream_TD, use_reentrant=False, preserve_rng_state=False
        )
        return outputs

    def _blocks(
        self, x_TD: Tensor, residual_TD: Tensor, shared: _SharedByLayers, codes: Fp8Rows | None
    ) -> tuple[Tensor, Tensor]:
        eps = self._config.rms_norm_eps
        region = self._region
        mixed_TD = self._attend(x_TD if region is None else region.enter(x_TD), shared, codes)
        mixed_TD = mixed_TD if region is None else region.leave(mixed_TD)
        if self._attention_post_norm_D is not None:
            mixed_TD = rms_norm(mixed_TD, weight_D=self._attention_post_norm_D, eps=eps)
        codes, norm_D = self.mlp.gate_up.code_room(mixed_TD), self._mlp_norm_D
        x_TD, residual_TD = add_rms_norm(mixed_TD, residual_TD=residual_TD, weight_D=norm_D, eps=eps, codes=codes)
        delta_TD = self.mlp(x_TD if region is None else region.enter(x_TD), shared.lora, codes=codes)
        delta_TD = delta_TD if region is None else region.leave(delta_TD)
        if self._mlp_post_norm_D is not None:
            delta_TD = rms_norm(delta_TD, weight_D=self._mlp_post_norm_D, eps=eps)
        return residual_TD, delta_TD

    def _attend(self, x_TD: Tensor, shared: _SharedByLayers, codes: Fp8Rows | None) -> Tensor:
        attention, lora = shared.attention, shared.lora
        q_THE, k_TGE, v_TGE = self._queries_keys_values(self._qkv(x_TD, lora, codes=codes), shared)
        # only the ragged kernels write their output next to the columns that an augmented product appends
        if not isinstance(attention, PackedAttention) or not self._rule.suits_kernels:
            o_THE = attention.attend(self._index, q_THE, k_TGE, v_TGE, rule=self._rule)
            return self._output(o_THE.flatten(1), lora)
        room = self._output.input_room(q_THE, lora)
        o_THE = attention.attend(self._index, q_THE, k_TGE, v_TGE, rule=self._rule, room=room)
        return self._output(o_THE.flatten(1), lora, room=room)

    def _queries_keys_values(self, qkv_TX: Tensor, shared: _SharedByLayers) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, H, E] and k [T, G, E], normed where the family does and rotated, and v [T, G, E]."""
        config, cos_TE, sin_TE = self._config, shared.cos_TE, shared.sin_TE
        heads = (config.num_heads, config.num_kv_heads)
        if self._q_norm_E is None or self._k_norm_E is None:
            return split_and_rotate(qkv_TX, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE)
        q_THE, k_TGE, v_TGE = qkv_TX.unflatten(1, (-1, config.head_dim)).split((*heads, heads[1]), dim=1)
        q_THE = rms_norm(q_THE, weight_D=self._q_norm_E, eps=config.rms_norm_eps)
        k_TGE = rms_norm(k_TGE, weight_D=self._k_norm_E, eps=config.rms_norm_eps)
        return *apply_rope(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE), v_TGE


def _not_exact(*, found: str, allowed: str) -> InputError:
    return InputError(Problem(where="numerics: exact", found=found, allowed=allowed, hint="Set numerics: fast."))


def _norm_weight(weight_D: Tensor, config: DecoderConfig) -> Tensor:
    """Return what a norm multiplies by; an offset is added in float32, since 16 bits would lose most of the weight."""
    return weight_D if config.norm_offset == 0.0 else weight_D.float() + config.norm_offset


def _add_and_norm(
    residual_TD: Tensor, delta_TD: Tensor | None, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of the stream with ``delta`` added, and that stream; write the norm's codes where asked."""
    if delta_TD is None:
        return rms_norm(residual_TD, weight_D=weight_D, eps=eps, codes=codes), residual_TD
    return add_rms_norm(delta_TD, residual_TD=residual_TD, weight_D=weight_D, eps=eps, codes=codes)
