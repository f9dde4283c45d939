"""How many rows does an expert see as adapters are added to a pass, and how long is a block of experts then?

More adapters bring more tokens to the same frozen experts, so that each product has more rows. A router with random
weights on random tokens stands for a trained one, whose experts are chosen less evenly.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, median_eager, print_table, write_result
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.expert_names import expert_shapes
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.kernels.segments import SegmentTable
from cohort.models.experts.expert_block import ExpertBlock
from cohort.models.experts.stacked_weights import StackedWeights

QUESTION = "How many rows does an expert see as adapters are added to a pass, and how long is a block of experts then?"
# hidden width, width of an expert, experts, experts of a token
SHAPES = {"tiny": (64, 32, 8, 2), "qwen3-30b-a3b": (2048, 768, 128, 8), "gpt-oss-20b": (2880, 2880, 32, 4)}
UP, DOWN = "experts.gate_up_proj", "experts.down_proj"


def block_of(shape: str, *, device: str, dtype: torch.dtype) -> ExpertBlock:
    """Return a block of random experts."""
    hidden, width, count, _ = SHAPES[shape]

    def drawn(outs: int, ins: int) -> torch.Tensor:
        return torch.randn(count, outs, ins, device=device, dtype=dtype) * ins**-0.5

    return ExpertBlock(
        up=StackedWeights(UP, drawn(2 * width, hidden)),
        down=StackedWeights(DOWN, drawn(hidden, width)),
        activation=lambda gate_up: gated_activation(gate_up, activation=Activation.SILU),
    )


def row_of(block: ExpertBlock, shape: str, *, adapters: int, tokens: int, rank: int) -> dict[str, Any]:
    """Return the rows of the experts in one pass, and its time with and without adapters on them."""
    hidden, width, count, each = SHAPES[shape]
    weight = block.up.weight_ENK
    layout = AdapterLayout(expert_shapes({UP: (count, hidden, 2 * width), DOWN: (count, width, hidden)}))
    bank = AdapterBank(
        layout,
        num_slots=adapters,
        num_rank_rows=16 * -(-rank // 16) * adapters,
        device=weight.device,
        compute_dtype=weight.dtype,
    )
    for _ in range(adapters):
        bank.insert(AdapterSpec(r=rank, lora_alpha=rank), AdapterState(weights=torch.randn(rank, layout.width)))
    total = adapters * tokens
    x_TD = torch.randn(total, hidden, device=weight.device, dtype=weight.dtype)
    scores_TE = x_TD @ torch.randn(hidden, count, device=weight.device, dtype=weight.dtype) * hidden**-0.5
    weights_TJ, index_TJ = scores_TE.float().softmax(dim=1).topk(each, dim=1)
    rows_E = torch.bincount(index_TJ.reshape(-1), minlength=count).float()
    segments = SegmentTable.from_samples([tokens] * adapters, slots=range(adapters), num_slots=adapters, num_rows=total)
    lora = bank.context(segments)
    with torch.no_grad():
        times = {
            name: _milliseconds(lambda own=own: block(x_TD, index_TJ, weights_TJ.to(x_TD.dtype), lora=own))
            for name, own in (("frozen_ms", None), ("adapted_ms", lora))
        }
    return {
        "adapters": adapters,
        "tokens": total,
        "rows_mean": float(rows_E.mean()),
        "rows_least": float(rows_E.min()),
        "rows_most": float(rows_E.max()),
        "experts_without_rows": int((rows_E == 0).sum()),
        **times,
    }


def _milliseconds(work: Any) -> float:
    if torch.cuda.is_available():
        return median_eager(work)
    work()
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each adapter in a pass")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/expert_rows_SHAPE.json, but for tiny")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    block = block_of(options.shape, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    rows = [
        row_of(block, options.shape, adapters=count, tokens=options.tokens, rank=options.rank)
        for count in options.adapters
    ]
    print_table(rows, columns=list(rows[0]))
    output = options.output or (None if options.shape == "tiny" else RESULTS / f"expert_rows_{options.shape}.json")
    if output is not None:
        headline = {f"rows_mean_{row['adapters']}": row["rows_mean"] for row in rows}
        write_result(output, question=QUESTION, headline=headline, rows=rows, notes={"rank": options.rank})


if __name__ == "__main__":
    main()
