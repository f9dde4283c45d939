"""How near are the step's memory-bound kernels to the memory's rate, and to what torch does?

Llama-3.1-8B shapes, bf16.
``python -m benchmarks.kernels.gpu_elementwise --output benchmarks/results/gpu_elementwise.json``

Each row: one kernel, its forward or forward and backward, in milliseconds per call as a CUDA-graph replay over rotating
buffers; ``bytes`` counts every operand once, ``rate`` is bytes over our time, ``share`` that over the copy ceiling
measured in the same run. ``eager`` and ``compiled`` are the same mathematics in plain torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import RESULTS, copy_ceiling, matrix_ceiling, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.adamw import SlotUpdate, adamw_step, stage_slots
from cohort.kernels.backend import Backend, describe_backend, implementation
from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.rms_norm import add_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope
from cohort.kernels.swiglu import swiglu
from cohort.models.weight_formats.kinds.plain import FrozenLinear

HIDDEN, HEADS, KV_HEADS, HEAD_WIDTH, MLP, VOCABULARY = 4096, 32, 8, 128, 14336, 128256
ENTRIES_PER_RANK_ROW = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))  # A and B of all linears
EPS = 1e-5
NUM_SETS = 3  # of buffers: a set alone may stay in the L2 cache

Work = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel.

    Attributes:
        name: As in the table.
        make: Returns one set of differentiable inputs.
        ours, plain: The kernel, and its mathematics in torch.
        forward_elements, backward_elements: bf16 elements that must be read or written, each once.
    """

    name: str
    make: Callable[[], list[Tensor]]
    ours: Work
    plain: Work
    forward_elements: int
    backward_elements: int


def _plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _plain_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]

    return rotate(q), rotate(k)


def _plain_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def cases(num_tokens: int) -> Iterator[Case]:
    """Yield every elementwise kernel of a decoder layer."""

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def leaf(*shape: int) -> Tensor:
        return tensor(*shape).requires_grad_()

    weight, head_weight = tensor(HIDDEN), tensor(HEAD_WIDTH)
    half = torch.rand(num_tokens, HEAD_WIDTH // 2, device="cuda") * 6
    cos, sin = (x.repeat(1, 2).bfloat16() for x in (half.cos(), half.sin()))
    stream, angles = num_tokens * HIDDEN, 2 * num_tokens * HEAD_WIDTH
    q_size, k_size = num_tokens * HEADS * HEAD_WIDTH, num_tokens * KV_HEADS * HEAD_WIDTH
    yield Case(
        name="rms_norm",
        make=lambda: [leaf(num_tokens, HIDDEN)],
        ours=lambda x: rms_norm(x, weight_D=weight, eps=EPS),
        plain=lambda x: _plain_norm(x, weight),
        forward_elements=2 * stream,
        backward_elements=3 * stream,
    )
    yield Case(
        name="rms_norm of query heads",
        make=lambda: [leaf(num_tokens, HEADS, HEAD_WIDTH)],
        ours=lambda x: rms_norm(x, weight_D=head_weight, eps=EPS),
        plain=lambda x: _plain_norm(x, head_weight),
        forward_elements=2 * q_size,
        backward_elements=3 * q_size,
    )
    yield Case(
        name="add_rms_norm",
        make=lambda: [leaf(num_tokens, HIDDEN), leaf(num_tokens, HIDDEN)],
        ours=lambda x, residual: add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=EPS),
        plain=lambda x, residual: (_plain_norm(x + residual, weight), x + residual),
        forward_elements=4 * stream,
        backward_elements=4 * stream,
    )
    yield Case(
        name="apply_rope",
        make=lambda: [leaf(num_tokens, HEADS, HEAD_WIDTH), leaf(num_tokens, KV_HEADS, HEAD_WIDTH)],
        ours=lambda q, k: apply_rope(q, k, cos_TE=cos, sin_TE=sin),
        plain=lambda q, k: _plain_rope(q, k, cos, sin),
        forward_elements=2 * (q_size + k_size) + angles,
        backward_elements=2 * (q_size + k_size) + angles,
    )
    yield Case(
        name="swiglu",
        make=lambda: [leaf(num_tokens, 2 * MLP)],
        ours=swiglu,
        plain=_plain_swiglu,
        forward_elements=3 * num_tokens * MLP,
        backward_elements=5 * num_tokens * MLP,
    )


def time_case(case: Case, *, ceiling: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of one kernel: forward alone, then forward and backward."""
    sets = [case.make() for _ in range(NUM_SETS)]
    with torch.no_grad():
        shapes = _as_tuple(case.ours(*sets[0]))
    upstream = [[torch.randn_like(y) for y in shapes] for _ in range(NUM_SETS)]
    compiled = torch.compile(case.plain, dynamic=False)

    def forward(work: Work) -> None:
        with torch.no_grad():
            for inputs in sets:
                work(*inputs)

    def both(work: Work) -> None:
        for inputs, gradients in zip(sets, upstream, strict=True):
            torch.autograd.grad(_as_tuple(work(*inputs)), inputs, gradients)

    for direction, run, elements in (
        ("forward", forward, case.forward_elements),
        ("forward + backward", both, case.forward_elements + case.backward_elements),
    ):
        times = {
            name: median_replay(lambda run=run, work=work: run(work)) / NUM_SETS  # type: ignore[misc]
            for name, work in (("ours", case.ours), ("eager", case.plain), ("compiled", compiled))
        }
        yield _row(case.name, direction, times, num_bytes=2 * elements, ceiling=ceiling)


def time_cross_entropy_kernel(rows: int, *, ceiling: float) -> Iterator[dict[str, Any]]:
    """Yield the cross-entropy kernel on one chunk of logits."""
    logits = [torch.randn(rows, VOCABULARY, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    targets = torch.randint(0, VOCABULARY, (rows,), device="cuda")
    kernel = implementation("cross_entropy", Backend.TRITON).cross_entropy_rows
    for direction, with_gradient, passes in (("forward", False, 1), ("forward + backward", True, 2)):

        def both(*, with_gradient: bool = with_gradient) -> None:
            for chunk in logits:
                kernel(chunk, targets_C=targets, with_gradient=with_gradient)

        times = {"ours": median_replay(both) / len(logits)}
        yield _row("cross_entropy_rows", direction, times, num_bytes=2 * passes * rows * VOCABULARY, ceiling=ceiling)


def time_loss_head(num_tokens: int, *, matrix_rate: float) -> Iterator[dict[str, Any]]:
    """Yield the whole loss head, forward and backward, and its two products alone."""
    head_weight = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16) / 64
    head = FrozenLinear(head_weight)
    hidden = torch.randn(num_tokens, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (num_tokens,), device="cuda")
    trained_rows, weights = torch.arange(num_tokens, device="cuda"), torch.rand(num_tokens, device="cuda")

    def ours() -> None:
        losses = linear_cross_entropy(hidden, head=head, targets_T=targets, trained_rows_M=trained_rows)
        torch.autograd.grad(losses, hidden, weights)

    def eager() -> None:
        logits_TV = hidden @ head_weight.t()
        losses = F.cross_entropy(logits_TV.float(), targets, reduction="none")
        torch.autograd.grad(losses, hidden, weights)

    def products() -> None:
        for rows in hidden.detach().split(4096):
            head.grad_input(head.forward(rows))

    times = {"ours": median_replay(ours), "eager": median_replay(eager), "products alone": median_replay(products)}
    floor = 4 * num_tokens * VOCABULARY * HIDDEN / matrix_rate / 1e9
    yield {"kernel": "linear_cross_entropy", "direction": "forward + backward", **times, "floor": floor}


def time_adamw(num_rows: int, *, ceiling: float) -> Iterator[dict[str, Any]]:
    """Yield one step of eight slots: norms, clipping, update, compute copy and zeroed gradients."""

    def matrix(scale: float) -> Tensor:
        return torch.randn(num_rows, ENTRIES_PER_RANK_ROW, device="cuda").mul_(scale)

    params, grads, exp_avg, exp_avg_sq = matrix(1e-2), matrix(1e-3), matrix(1e-4), matrix(1e-6).abs_()
    compute = params.bfloat16()
    rank = num_rows // 8
    slots = [
        SlotUpdate(row_start=slot * rank, rank=rank, learning_rate=1e-4 * (slot + 1), step=10, max_grad_norm=1.0)
        for slot in range(8)
    ]
    staged = stage_slots(slots, device=params.device)

    def ours() -> None:
        adamw_step(
            params, grads_RD=grads, exp_avg_RD=exp_avg, exp_avg_sq_RD=exp_avg_sq, slots=staged, compute_RD=compute
        )

    time = median_replay(ours)
    weights = [torch.nn.Parameter(params[s * rank : (s + 1) * rank]) for s in range(8)]
    for index, weight in enumerate(weights):
        weight.grad = grads[index * rank : (index + 1) * rank]
    optimizers = [torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=True) for weight in weights]

    def eager() -> None:
        for weight, optimizer in zip(weights, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
        compute.copy_(params)

    times = {"ours": time, "eager": median_replay(eager)}
    # norms read the gradients; the update reads four matrices, writes three and the 16-bit copy
    num_bytes = num_rows * ENTRIES_PER_RANK_ROW * (4 + 16 + 12 + 2)
    yield _row(f"adamw_step of {num_rows} rank rows", "step", times, num_bytes=num_bytes, ceiling=ceiling)


def _row(kernel: str, direction: str, times: dict[str, float], *, num_bytes: int, ceiling: float) -> dict[str, Any]:
    rate = num_bytes / times["ours"] / 1e9
    return {
        "kernel": kernel,
        "direction": direction,
        **times,
        "floor": num_bytes / ceiling / 1e9,
        "bytes": num_bytes,
        "rate": rate,
        "share": rate / ceiling,
    }


def _as_tuple(result: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rank-rows", type=int, default=128)
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu_elementwise.json")
    arguments = parser.parse_args()
    need_gpu()
    backend = describe_backend("cuda")
    print(f"kernels: {backend}", flush=True)
    ceiling, matrix_rate = copy_ceiling(), matrix_ceiling()
    rows: list[dict[str, Any]] = []
    for case in cases(arguments.tokens):
        rows += time_case(case, ceiling=ceiling)
        torch.cuda.empty_cache()
    rows += time_cross_entropy_kernel(min(arguments.tokens, 4096), ceiling=ceiling)
    torch.cuda.empty_cache()
    rows += time_loss_head(arguments.tokens, matrix_rate=matrix_rate)
    torch.cuda.empty_cache()
    rows += time_adamw(arguments.rank_rows, ceiling=ceiling)
    columns = ("kernel", "direction", "ours", "eager", "compiled", "products alone", "floor", "rate", "share")
    print_table(rows, columns=columns)
    shares = {f"{row['kernel']}, {row['direction']}": row["share"] for row in rows if "share" in row}
    write_result(
        arguments.output,
        question="How near are the memory-bound kernels of a step to the copy rate, and to torch eager and compiled?",
        headline={"least_share_of_copy_rate": min(shares.values()), **shares},
        rows=rows,
        notes={
            "tokens": arguments.tokens,
            "copy_ceiling_tb_per_s": ceiling,
            "matrix_ceiling_tflop_per_s": matrix_rate,
            "kernels": str(backend),
            "unit": "milliseconds per call",
        },
    )


if __name__ == "__main__":
    main()
