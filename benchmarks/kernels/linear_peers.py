"""What others do for the same pack, forward and backward, from plain torch: the columns next to ours.

Each peer computes Y, dX and every adapter's dA and dB for all sibling linears of a pack, in bf16, without autograd, so
that its products alone are timed.

Shapes:  T rows · Z adapters · K input width · N output width · R padded rank
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import Pack

__all__ = ["PEERS", "concatenated", "grouped_mm", "loop", "peft_one_by_one"]


def loop(pack: Pack) -> Callable[[], tuple[Tensor, Tensor]]:
    """One adapter after the other over its own rows, on the fused frozen product."""

    def work() -> tuple[Tensor, Tensor]:
        y, dx = pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN)
        for part in pack.parts:
            for slot in range(pack.slots.num_slots):
                rows, ranks = pack.segments.rows(slot), pack.slots.rank_rows(slot)
                x, dy, scale = pack.x_TK[rows], pack.dy_TN[rows, part.columns], pack.slots.scales[slot]
                a, b = part.a_RK[ranks], part.b_RN[ranks]
                s = x @ a.T
                y[rows, part.columns].addmm_(s, b, alpha=scale)
                ds = (dy @ b.T) * scale
                (s.T @ dy) * scale
                ds.T @ x
                dx[rows].addmm_(ds, a)
        return y, dx

    return work


def concatenated(pack: Pack) -> Callable[[], tuple[Tensor, Tensor]]:
    """All adapters' factors as one wide adapter; a mask keeps each row to its own columns."""
    mask = torch.zeros(pack.x_TK.shape[0], pack.parts[0].a_RK.shape[0], device=pack.x_TK.device, dtype=pack.x_TK.dtype)
    for slot, scale in enumerate(pack.slots.scales):
        mask[pack.segments.rows(slot), pack.slots.rank_rows(slot)] = scale

    def work() -> tuple[Tensor, Tensor]:
        y, dx = pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN)
        for part in pack.parts:
            s = (pack.x_TK @ part.a_RK.T).mul_(mask)
            y[:, part.columns].addmm_(s, part.b_RN)
            dy = pack.dy_TN[:, part.columns]
            ds = (dy @ part.b_RN.T).mul_(mask)
            s.T @ dy
            ds.T @ pack.x_TK
            dx.addmm_(ds, part.a_RK)
        return y, dx

    return work


def grouped_mm(pack: Pack) -> Callable[[], tuple[Tensor, Tensor]]:
    """``torch._grouped_mm`` over factors padded to the largest rank."""
    num_slots, largest = pack.slots.num_slots, -(-max(pack.slots.ranks) // 16) * 16
    ends = torch.tensor(pack.segments.offsets[1:], dtype=torch.int32, device=pack.x_TK.device)
    scales = torch.tensor(pack.slots.scales, device=pack.x_TK.device, dtype=pack.x_TK.dtype)
    rows = torch.repeat_interleave(
        torch.arange(num_slots, device=ends.device), torch.diff(ends, prepend=ends.new_zeros(1)).long()
    )
    scale_T1 = scales[rows][:, None]

    def stack(factor: Tensor) -> Tensor:
        stacked = factor.new_zeros(num_slots, largest, factor.shape[1])
        for slot, rank in enumerate(pack.slots.ranks):
            stacked[slot, :rank] = factor[pack.slots.rank_rows(slot)]
        return stacked

    factors = [(stack(part.a_RK), stack(part.b_RN), part.columns) for part in pack.parts]
    product = torch._grouped_mm

    def work() -> tuple[Tensor, Tensor]:
        y, dx = pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN)
        for a_ZRK, b_ZRN, columns in factors:
            s = product(pack.x_TK, a_ZRK.transpose(1, 2), offs=ends)
            y[:, columns].addcmul_(product(s, b_ZRN, offs=ends), scale_T1)
            dy = pack.dy_TN[:, columns]
            ds = product(dy, b_ZRN.transpose(1, 2), offs=ends) * scale_T1
            product((s * scale_T1).T, dy, offs=ends)
            product(ds.T, pack.x_TK, offs=ends)
            dx += product(ds, a_ZRK, offs=ends)
        return y, dx

    return work


def peft_one_by_one(pack: Pack) -> Callable[[], object]:
    """PEFT's LoRA linear, adapter after adapter over its own rows, through autograd as its users run it."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    layers = []
    for part in pack.parts:
        base = torch.nn.Linear(pack.x_TK.shape[1], part.b_RN.shape[1], bias=False, device="meta", dtype=pack.x_TK.dtype)
        base.weight = torch.nn.Parameter(pack.frozen._weight_NK[part.columns], requires_grad=False)
        config = LoraConfig(r=pack.slots.ranks[0], lora_alpha=2 * pack.slots.ranks[0], init_lora_weights=False)
        layer = Linear(base, "0", config, r=config.r, lora_alpha=config.lora_alpha)
        for slot, rank in enumerate(pack.slots.ranks[1:], start=1):
            other = LoraConfig(r=rank, lora_alpha=2 * rank, init_lora_weights=False)
            layer.update_layer(str(slot), rank, lora_alpha=2 * rank, config=other)
        layers.append((layer.to(device=pack.x_TK.device, dtype=pack.x_TK.dtype), part.columns))
    x = pack.x_TK.detach().requires_grad_()

    def work() -> None:
        x.grad = None
        for layer, columns in layers:
            for slot in range(pack.slots.num_slots):
                rows = pack.segments.rows(slot)
                layer.set_adapter(str(slot))
                layer(x[rows]).backward(pack.dy_TN[rows, columns])

    return work


PEERS: dict[str, Callable[[Pack], Callable[[], object]]] = {
    "loop": loop,
    "concatenated": concatenated,
    "grouped_mm": grouped_mm,
}
