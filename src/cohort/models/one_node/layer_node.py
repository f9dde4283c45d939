"""A decoder layer of the usual form on a CPU, as one node of autograd.

The operations are those of the layer's own linears, norms, rotation, attention and activation, forward and backward, in
the same order, so all bits are the same and as much is kept. But they are one node in place of thirty, each of which
takes 15 to 25 us, as long as a norm of 64 rows: for one trial with short rows that is a tenth of a step.

Shapes:  T rows of the stream · M rows that are needed behind the attention · D hidden width
         H query heads · G key-value heads · E head width
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.adapters.linear import LoraContext, PackedLinear
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear import LoraPart
from cohort.kernels.packed_linear.checks import check_parts, check_stream
from cohort.kernels.packed_linear.frozen_product import can_take_codes, can_take_gradient_codes
from cohort.kernels.packed_linear.per_sample import Piece, per_sample_backward, per_sample_forward, term_pieces
from cohort.kernels.rms_norm.reference import add_rms_norm_backward, norm_with_inverse
from cohort.kernels.rope.reference import fused_backward, fused_forward
from cohort.kernels.swiglu.reference import swiglu_backward, swiglu_forward
from cohort.models.attention import AttentionContext, PackedAttention
from cohort.models.attention_buckets import BucketLayout
from cohort.models.config import AttentionRule
from cohort.models.one_node.graphless_attention import attends_without_graph, attention_backward, attention_forward
from cohort.models.pass_inputs.needed_rows import NeededRows

__all__ = ["LayerForm", "suits_one_node", "through_one_node"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerForm:
    """What makes up a layer of the usual form: two norms, rotated halves of whole heads, a SiLU block, no factors.

    Attributes:
        heads: H and G.
        eps: Of both norms.
    """

    input_norm_D: Tensor
    qkv: PackedLinear
    output: PackedLinear
    mlp_norm_D: Tensor
    gate_up: PackedLinear
    down: PackedLinear
    heads: tuple[int, int]
    width: int
    eps: float
    rule: AttentionRule

    @property
    def linears(self) -> tuple[PackedLinear, PackedLinear, PackedLinear, PackedLinear]:
        """In order of use."""
        return self.qkv, self.output, self.gate_up, self.down


class _Call(NamedTuple):
    """A pass of a layer, besides the tensors with gradients; ``behind`` is ``lora`` behind the attention."""

    form: LayerForm
    parts: tuple[tuple[LoraPart, ...], ...]
    lora: LoraContext
    behind: LoraContext
    needed: NeededRows | None
    layout: BucketLayout
    cos_TE: Tensor
    sin_TE: Tensor


def through_one_node(
    form: LayerForm,
    residual_TD: Tensor,
    delta_TD: Tensor | None,
    *,
    attention: AttentionContext,
    angles: tuple[Tensor, Tensor],
    lora: LoraContext,
    needed: NeededRows | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return the residual stream and the MLP's output, 0 in rows not ``needed``; None where single nodes compute them.

    That is without gradients, on a GPU, where a backend is forced, where adapters are more than factors with sinks,
    for attention that is not causal within packed sequences, and where nothing here would begin the graph.
    """
    if not torch.is_grad_enabled() or residual_TD.device.type != "cpu" or not isinstance(attention, PackedAttention):
        return None
    if lora.tables is not None or lora.magnitudes is not None or lora.segments.multiplies_slots:
        return None
    if choose_backend(residual_TD) is not Backend.REFERENCE or not attends_without_graph(
        attention, rule=form.rule, heads=form.heads, width=form.width, dtype=residual_TD.dtype
    ):
        return None
    parts = tuple(linear.adapted(lora) for linear in form.linears)
    if any(part.grad_a_RK is None for own in parts for part in own):
        return None
    continues = residual_TD.requires_grad or (delta_TD is not None and delta_TD.requires_grad)
    if not continues and not parts[0]:
        return None
    frozen = form.qkv.frozen
    tables, slots, segments, keys = lora.tables, lora.slots, lora.segments, lora.row_keys_T
    check_stream(residual_TD, frozen=frozen, slots=slots, segments=segments, tables=tables, row_keys_T=keys)
    layout = attention.layout(residual_TD.shape[0], residual_TD.device)
    # the graph begins here where the stream has no gradient
    start = None if continues else torch.empty(0, requires_grad=True)
    behind = lora if needed is None else needed.narrowed(lora)
    call = _Call(form, parts, lora, behind, needed, layout, *angles)
    result: tuple[Tensor, Tensor] = _LayerFunction.apply(residual_TD, delta_TD, call, start)
    return result


def suits_one_node(linears: Sequence[PackedLinear]) -> bool:
    """Return whether the linears are plain: products of a norm's codes have nodes that hand them on."""
    return all(
        type(linear) is PackedLinear
        and not can_take_codes(linear.frozen)
        and not can_take_gradient_codes(linear.frozen)
        for linear in linears
    )


class _Plan(NamedTuple):
    """How one linear is computed in a pass, for its way back: its pieces, and how many tensors each has kept."""

    pieces: list[Piece]
    counts: list[int]


def _forward(
    linear: PackedLinear, parts: tuple[LoraPart, ...], x_TK: Tensor, lora: LoraContext
) -> tuple[Tensor, list[Tensor], _Plan]:
    """Return y [T, N], what is kept (x first) and the plan."""
    frozen, slots, segments, keys = linear.frozen, lora.slots, lora.segments, lora.row_keys_T
    check_parts(parts, x_TK=x_TK, frozen=frozen, slots=slots)
    pieces = term_pieces(x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, drops=keys is not None)
    y_TN, found = per_sample_forward(
        x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=keys, pieces=pieces
    )
    kept = [x_TK, *(tensor for of_piece in found for tensor in of_piece)]
    return y_TN, kept, _Plan(pieces, [len(of_piece) for of_piece in found])


def _backward(
    linear: PackedLinear,
    parts: tuple[LoraPart, ...],
    dy_TN: Tensor,
    lora: LoraContext,
    *,
    kept: Sequence[Tensor],
    plan: _Plan,
    with_dx: bool = True,
) -> Tensor | None:
    tensors = iter(kept)
    return per_sample_backward(
        dy_TN,
        x_TK=next(tensors),
        kept=[list(itertools.islice(tensors, count)) for count in plan.counts],
        frozen=linear.frozen,
        parts=parts,
        slots=lora.slots,
        segments=lora.segments,
        row_keys_T=lora.row_keys_T,
        with_dx=with_dx,
        pieces=plan.pieces,
    )


class _LayerFunction(torch.autograd.Function):
    """``forward(residual, delta, call, start) -> (residual, delta)``; ``start`` has no entries and begins a graph."""

    @staticmethod
    def forward(
        ctx: Any, residual_TD: Tensor, delta_TD: Tensor | None, call: _Call, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        del start
        form, lora, behind, needed, eps = call.form, call.lora, call.behind, call.needed, call.form.eps
        qkv, output, gate_up, down = call.parts
        entered_TD = residual_TD if delta_TD is None else residual_TD + delta_TD
        x_TD, entered_inverse_T1 = norm_with_inverse(entered_TD, weight_D=form.input_norm_D, eps=eps)
        qkv_TN, qkv_kept, qkv_plan = _forward(form.qkv, qkv, x_TD, lora)
        q_THE, k_TGE, v_TGE = fused_forward(qkv_TN, heads=form.heads, cos_TE=call.cos_TE, sin_TE=call.sin_TE)
        o_THE, attention_kept = attention_forward(call.layout, q_THE, k_TGE, v_TGE, rule=form.rule)
        del qkv_TN, q_THE, k_TGE, v_TGE
        o_MN, stays_MD = o_THE.flatten(1), entered_TD
        if needed is not None:
            o_MN, stays_MD = needed.pick(o_MN), needed.pick(stays_MD)
        mixed_MD, output_kept, output_plan = _forward(form.output, output, o_MN, behind)
        middle_MD = stays_MD + mixed_MD
        x_MD, middle_inverse_M1 = norm_with_inverse(middle_MD, weight_D=form.mlp_norm_D, eps=eps)
        del mixed_MD
        gate_up_MF, gate_up_kept, gate_up_plan = _forward(form.gate_up, gate_up, x_MD, behind)
        result_MD, down_kept, down_plan = _forward(form.down, down, swiglu_forward(gate_up_MF), behind)
        own = [entered_TD, entered_inverse_T1, middle_MD, middle_inverse_M1, gate_up_MF]
        groups = (own, qkv_kept, attention_kept, output_kept, gate_up_kept, down_kept)
        ctx.save_for_backward(*itertools.chain.from_iterable(groups))
        ctx.counts = [len(group) for group in groups]
        ctx.call, ctx.plans = call, (qkv_plan, output_plan, gate_up_plan, down_plan)
        if needed is None:
            return middle_MD, result_MD
        num_rows = entered_TD.shape[0]
        return needed.place(middle_MD, num_rows=num_rows), needed.place(result_MD, num_rows=num_rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresidual_TD: Tensor, ddelta_TD: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        form, lora, behind, needed, eps = call.form, call.lora, call.behind, call.needed, call.form.eps
        tensors = iter(ctx.saved_tensors)
        own, qkv_kept, attention_kept, output_kept, gate_up_kept, down_kept = (
            list(itertools.islice(tensors, count)) for count in ctx.counts
        )
        entered_TD, entered_inverse_T1, middle_MD, middle_inverse_M1, gate_up_MF = own
        qkv, output, gate_up, down = call.parts
        qkv_plan, output_plan, gate_up_plan, down_plan = ctx.plans
        dresult_MD, dmiddle_MD = ddelta_TD, dresidual_TD
        if needed is not None:
            dresult_MD, dmiddle_MD = needed.pick(dresult_MD), needed.pick(dmiddle_MD)
        dhidden_MF = _backward(form.down, down, dresult_MD, behind, kept=down_kept, plan=down_plan)
        assert dhidden_MF is not None, "asked for"
        dgate_up_MF = swiglu_backward(dhidden_MF, gate_up_TF=gate_up_MF)
        del dhidden_MF
        dx_MD = _backward(form.gate_up, gate_up, dgate_up_MF, behind, kept=gate_up_kept, plan=gate_up_plan)
        del dgate_up_MF
        assert dx_MD is not None, "asked for"
        dmixed_TD = add_rms_norm_backward(
            dx_MD,
            dresidual_TD=dmiddle_MD,
            new_residual_TD=middle_MD,
            weight_D=form.mlp_norm_D,
            eps=eps,
            inverse_T1=middle_inverse_M1,
        )
        do_TN = _backward(form.output, output, dmixed_TD, behind, kept=output_kept, plan=output_plan)
        assert do_TN is not None, "asked for"
        if needed is not None:
            num_rows = entered_TD.shape[0]
            do_TN, dmixed_TD = (needed.place(rows_MD, num_rows=num_rows) for rows_MD in (do_TN, dmixed_TD))
        dq_THE, dk_TGE, dv_TGE = attention_backward(
            call.layout, do_TN.unflatten(1, (-1, form.width)), attention_kept, rule=form.rule
        )
        dqkv_TN = fused_backward(dq_THE, dk_TGE, dv_TGE, cos_TE=call.cos_TE, sin_TE=call.sin_TE)
        of_residual, of_delta = ctx.needs_input_grad[:2]
        dx_TD = _backward(form.qkv, qkv, dqkv_TN, lora, kept=qkv_kept, plan=qkv_plan, with_dx=of_residual or of_delta)
        if dx_TD is None:
            return None, None, None, None
        dentered_TD = add_rms_norm_backward(
            dx_TD,
            dresidual_TD=dmixed_TD,
            new_residual_TD=entered_TD,
            weight_D=form.input_norm_D,
            eps=eps,
            inverse_T1=entered_inverse_T1,
        )
        return dentered_TD if of_residual else None, dentered_TD if of_delta else None, None, None
