"""One layer of the decoder: attention and the feed-forward block, each behind its norm.

Shapes:  T rows of the stream · D hidden width · H query heads · G key-value heads · E head width · F MLP width
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cohort.adapters.expert_names import expert_name
from cohort.adapters.linear import LinearPart, LoraContext, PackedLinear
from cohort.adapters.mlp import PackedMlp
from cohort.kernels.deferred_lora_term import Apart, joined
from cohort.kernels.exact_product import AgreedShapes
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.gated_activation import Activation
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.frozen_product import can_be_exact
from cohort.kernels.rms_norm import add_rms_norm, fork_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope, split_and_rotate
from cohort.models.attention import PackedAttention
from cohort.models.config import DecoderConfig
from cohort.models.experts.mixture import MixtureOfExperts
from cohort.models.experts.sparse_mlp import SparseMlp
from cohort.models.experts.stacked_weights import StackedWeights
from cohort.models.one_node.layer_node import LayerForm, suits_one_node, through_one_node
from cohort.models.pass_inputs.shared_by_layers import SharedByLayers, TensorRegion

__all__ = ["DecoderLayer", "add_and_norm", "norm_weight"]


class DecoderLayer:
    """Attention and MLP, each behind its norm; the additions to the residual stream are fused into the norms.

    Attributes:
        linears: The packed linears, in order of use.
        adaptable: Those of them that adapters adapt.
        mlp: Dense, or a block of experts.
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
            return None if weight is None else norm_weight(weight, config)

        self._input_norm_D = norm("input_norm")
        self._qkv = linear("qkv", **config.qkv_parts)
        self._q_norm_E = norm("q_norm")
        self._k_norm_E = norm("k_norm")
        self._output = linear("output", o_proj=config.hidden_size)
        self._attention_post_norm_D = norm("attention_post_norm")
        self._mlp_norm_D = norm("mlp_norm")
        self.mlp: PackedMlp | SparseMlp
        # whose input a norm writes codes of; experts are never quantised
        self._mlp_input: PackedLinear | None = None
        self.linears: tuple[PackedLinear, ...] = (self._qkv, self._output)
        self.adaptable: tuple[PackedLinear, ...] = self.linears
        if config.mixture is not None and config.is_sparse(index):
            self.mlp = _sparse(config, config.mixture, index, tensors)
        else:
            gate_up, down = linear("gate_up", **config.gate_up_parts), linear("down", down_proj=config.hidden_size)
            self.mlp, self._mlp_input = PackedMlp(gate_up, down, activation=config.activation), gate_up
            self.linears = (*self.linears, gate_up, down)
            self.adaptable = self.linears if config.mixture is None else self.adaptable
        self._mlp_post_norm_D = norm("mlp_post_norm")
        # what reads a product next can add its LoRA terms where it is a kernel of this layer or the next one's norm
        self._is_rotated = index not in config.unrotated_layers
        has_norms = self._q_norm_E is not None and self._k_norm_E is not None
        turns_halves = self._is_rotated and config.rotated_width == config.head_dim and not config.rotates_pairs
        self._joins_qkv = turns_halves and not has_norms
        is_whole = region is None and config.residual_scale == 1.0
        self._joins_attention = is_whole and self._attention_post_norm_D is None
        self._joins_mlp = is_whole and self._mlp_post_norm_D is None
        self._form = self._usual_form()

    def __call__(
        self, residual_TD: Tensor, delta_TD: Tensor | Apart | None, shared: SharedByLayers
    ) -> tuple[Tensor, Tensor | Apart]:
        """Return the residual stream and the MLP's output, which the next norm adds to it.

        Rows not needed are 0; for the grouped kernels, which have tables of those needed, both are of these alone.
        """
        if shared.has_one_node and self._form and shared.lora is not None and not isinstance(delta_TD, Apart):
            angles, lora = shared.angles if self._rule.window is None else shared.local_angles, shared.lora
            passed = through_one_node(
                self._form,
                residual_TD,
                delta_TD,
                attention=shared.attention,
                angles=angles,
                lora=lora,
                needed=shared.needed,
            )
            if passed is not None:
                return passed
        x_TD, residual_TD, codes = self._entering(residual_TD, delta_TD, self._input_norm_D, self._qkv)
        return self._blocks(x_TD, residual_TD, shared, codes)

    def _usual_form(self) -> LayerForm | None:
        """Return what one node of autograd can take; None for layers with anything else."""
        is_usual = self._joins_qkv and self._joins_attention and self._joins_mlp and self._config.query_growth is None
        is_usual = is_usual and self._config.activation is Activation.SILU and suits_one_node(self.linears)
        if not is_usual or not isinstance(self.mlp, PackedMlp):
            return None
        if self._input_norm_D is None or self._mlp_norm_D is None:
            return None
        return LayerForm(
            input_norm_D=self._input_norm_D,
            qkv=self._qkv,
            output=self._output,
            mlp_norm_D=self._mlp_norm_D,
            gate_up=self.mlp.gate_up,
            down=self.mlp.down,
            heads=(self._config.num_heads, self._config.num_kv_heads),
            width=self._config.head_dim,
            eps=self._config.rms_norm_eps,
            rule=self._rule,
        )

    @property
    def first_experts(self) -> tuple[str, ...]:
        """What an adapter's layout calls the first expert of each stacked parameter; none of a dense layer."""
        stacked = (self.mlp.block.up, self.mlp.block.down) if isinstance(self.mlp, SparseMlp) else ()
        return tuple(expert_name(own.name, 0) for own in stacked)

    def use_exact_mlp(self, *, exact: bool, agreed: AgreedShapes | None) -> None:
        """Let the feed-forward block give each row the same bits in any stream on a GPU; or no longer.

        Its linears are products of the decoder, which are asked by themselves.
        """
        if isinstance(self.mlp, SparseMlp):
            self.mlp.use_exact(exact=exact, agreed=agreed)
            return
        frozen = self.mlp.gate_up.frozen
        if exact or (can_be_exact(frozen) and frozen.is_exact):
            # the fused block is chosen by the ranks of a pack
            self.mlp.is_composed = exact

    def recomputed(
        self, residual_TD: Tensor, delta_TD: Tensor | Apart | None, shared: SharedByLayers
    ) -> tuple[Tensor, Tensor]:
        """Return the same bits as a call, keeping only the sum of both inputs until the backward pass.

        Nothing in a layer draws from a generator with a state (dropout is keyed by row), so a second forward pass is
        the first; gradients of the adapters are written by the backward pass alone, which runs once.
        """
        # the sum is a tensor of its own: kept are D values a row and layer, where both summands would be 2 D
        stream_TD = residual_TD if delta_TD is None else residual_TD + joined(delta_TD)

        def layer(stream_TD: Tensor) -> tuple[Tensor, Tensor | Apart]:
            if self._input_norm_D is None:
                return self._blocks(stream_TD, stream_TD, shared, None)
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
        self, x_TD: Tensor, residual_TD: Tensor, shared: SharedByLayers, codes: Fp8Rows | None
    ) -> tuple[Tensor, Tensor | Apart]:
        eps, needed, num_rows = self._config.rms_norm_eps, shared.needed, x_TD.shape[0]
        region, behind = self._region, shared.behind_attention()
        mixed_TD = self._attend(x_TD if region is None else region.enter(x_TD), shared, behind.lora, codes)
        if needed is not None:
            residual_TD = needed.picked(residual_TD)
        if region is not None:
            mixed_TD = region.leave(joined(mixed_TD))
        if self._attention_post_norm_D is not None:
            mixed_TD = rms_norm(joined(mixed_TD), weight_D=self._attention_post_norm_D, eps=eps)
        if self._config.residual_scale != 1.0:
            mixed_TD = joined(mixed_TD) * self._config.residual_scale
        x_TD, residual_TD, codes = self._entering(residual_TD, mixed_TD, self._mlp_norm_D, self._mlp_input)
        mlp = self.mlp.apart if self._joins_mlp else self.mlp
        delta_TD = mlp(x_TD if region is None else region.enter(x_TD), behind.lora, codes=codes)
        if region is not None:
            delta_TD = region.leave(joined(delta_TD))
        if self._mlp_post_norm_D is not None:
            delta_TD = rms_norm(joined(delta_TD), weight_D=self._mlp_post_norm_D, eps=eps)
        if self._config.residual_scale != 1.0:
            delta_TD = joined(delta_TD) * self._config.residual_scale
        if needed is not None and needed.tables is None:
            residual_TD = needed.placed(residual_TD, num_rows=num_rows)
            return residual_TD, needed.placed(joined(delta_TD), num_rows=num_rows)
        return residual_TD, delta_TD

    def _entering(
        self, residual_TD: Tensor, delta_TD: Tensor | Apart | None, norm_D: Tensor | None, linear: PackedLinear | None
    ) -> tuple[Tensor, Tensor, Fp8Rows | None]:
        """Return what a block reads, the stream with ``delta`` added, and where the norm wrote the linear's codes."""
        if norm_D is None:
            stream_TD = residual_TD if delta_TD is None else residual_TD + joined(delta_TD)
            return stream_TD, stream_TD, None
        eps, codes = self._config.rms_norm_eps, None if linear is None else linear.code_room(residual_TD)
        return *add_and_norm(residual_TD, delta_TD, weight_D=norm_D, eps=eps, codes=codes), codes

    def _attend(
        self, x_TD: Tensor, shared: SharedByLayers, behind: LoraContext | None, codes: Fp8Rows | None
    ) -> Tensor | Apart:
        """Return the attention's output, of the rows that ``behind`` has."""
        attention, lora, needed = shared.attention, shared.lora, shared.needed
        qkv = self._qkv.apart if self._joins_qkv else self._qkv
        q_THE, k_TGE, v_TGE = self._queries_keys_values(qkv(x_TD, lora, codes=codes), shared)
        if needed is not None:
            o_TN = attention.attend(self._index, q_THE, k_TGE, v_TGE, rule=self._rule).flatten(1)
            room = self._output.input_room(o_TN, behind)
            return self._output(needed.picked(o_TN, room=room), behind, room=room)
        # only the ragged kernels write their output next to the columns that an augmented product appends
        if not isinstance(attention, PackedAttention) or not self._rule.suits_kernels:
            o_TN = attention.attend(self._index, q_THE, k_TGE, v_TGE, rule=self._rule).flatten(1)
            return (self._output.apart if self._joins_attention else self._output)(o_TN, lora)
        room = self._output.input_room(q_THE, lora)
        o_THE = attention.attend(self._index, q_THE, k_TGE, v_TGE, rule=self._rule, room=room)
        return self._output(o_THE.flatten(1), lora, room=room)

    def _queries_keys_values(self, qkv_TX: Tensor | Apart, shared: SharedByLayers) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, H, E] and k [T, G, E], normed where the family does and rotated, and v [T, G, E]."""
        q_THE, k_TGE, v_TGE = self._turned(qkv_TX, shared)
        if shared.query_scale_T is not None:
            q_THE = q_THE * shared.query_scale_T[:, None, None]
        return q_THE, k_TGE, v_TGE

    def _turned(self, qkv_TX: Tensor | Apart, shared: SharedByLayers) -> tuple[Tensor, Tensor, Tensor]:
        config = self._config
        cos_TE, sin_TE = shared.angles if self._rule.window is None else shared.local_angles
        heads = (config.num_heads, config.num_kv_heads)
        if self._joins_qkv:
            if isinstance(qkv_TX, Apart):
                product, term = qkv_TX.product_TN, qkv_TX.term_TN
                return split_and_rotate(product, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE, term_TN=term)
            return split_and_rotate(qkv_TX, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE)
        q_THE, k_TGE, v_TGE = self._normed(joined(qkv_TX))
        if not self._is_rotated:
            return q_THE.contiguous(), k_TGE.contiguous(), v_TGE
        width = config.rotated_width
        front = (q_THE[..., :width], k_TGE[..., :width])
        if config.rotates_pairs:
            # both in the same other order: products of queries and keys do not change by it
            front = (_halves(front[0]), _halves(front[1]))
        turned = apply_rope(*front, cos_TE=cos_TE, sin_TE=sin_TE)
        if width == config.head_dim:
            return *turned, v_TGE
        q_THE, k_TGE = (
            torch.cat((rotated, whole[..., width:]), dim=-1)
            for rotated, whole in zip(turned, (q_THE, k_TGE), strict=True)
        )
        return q_THE, k_TGE, v_TGE

    def _normed(self, qkv_TN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, H, E], k [T, G, E] and v [T, G, E], the first two normed where the family does."""
        config, eps = self._config, self._config.rms_norm_eps
        q_TN, k_TN, v_TN = qkv_TN.split((config.query_width, config.kv_width, config.kv_width), dim=1)
        norms = (self._q_norm_E, self._k_norm_E)
        if config.norms_all_heads:
            q_TN, k_TN = (
                x_TN if norm_N is None else rms_norm(x_TN.contiguous(), weight_D=norm_N, eps=eps)
                for x_TN, norm_N in zip((q_TN, k_TN), norms, strict=True)
            )
        q_THE, k_TGE, v_TGE = (x_TN.unflatten(1, (-1, config.head_dim)) for x_TN in (q_TN, k_TN, v_TN))
        if not config.norms_all_heads:
            q_THE, k_TGE = (
                x_THE if norm_E is None else rms_norm(x_THE, weight_D=norm_E, eps=eps)
                for x_THE, norm_E in zip((q_THE, k_TGE), norms, strict=True)
            )
        return q_THE, k_TGE, v_TGE


def _sparse(config: DecoderConfig, mixture: MixtureOfExperts, index: int, tensors: Mapping[str, Tensor]) -> SparseMlp:
    ours = f"layers.{index}."
    parameters = mixture.parameters(index, hidden_size=config.hidden_size)
    up, down = (
        StackedWeights(path, tensors[ours + own].view(num_experts, outs, ins))
        for own, (path, (num_experts, ins, outs)) in zip(
            ("experts_up", "experts_down"), parameters.items(), strict=True
        )
    )
    return SparseMlp(mixture, router_ED=tensors[ours + "router"], up=up, down=down, activation=config.activation)


def _halves(x_THE: Tensor) -> Tensor:
    """Return rows whose entries 2i and 2i+1 stand half a head apart, as the rotary embedding pairs them."""
    halves_THE: Tensor = x_THE.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return halves_THE


def norm_weight(weight_D: Tensor, config: DecoderConfig) -> Tensor:
    """Return what a norm multiplies by; an offset is added in float32, since 16 bits would lose most of the weight."""
    return weight_D if config.norm_offset == 0.0 else weight_D.float() + config.norm_offset


def add_and_norm(
    residual_TD: Tensor, delta_TD: Tensor | Apart | None, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of the stream with ``delta`` added, and that stream; write the norm's codes where asked."""
    if delta_TD is None:
        return rms_norm(residual_TD, weight_D=weight_D, eps=eps, codes=codes), residual_TD
    if isinstance(delta_TD, Apart):
        product, term = delta_TD.product_TN, delta_TD.term_TN
        return add_rms_norm(product, residual_TD=residual_TD, weight_D=weight_D, eps=eps, codes=codes, term_TD=term)
    return add_rms_norm(delta_TD, residual_TD=residual_TD, weight_D=weight_D, eps=eps, codes=codes)
