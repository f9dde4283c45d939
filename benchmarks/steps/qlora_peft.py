"""Tokens per second of 32 adapters in one pack on an nf4 base against QLoRA by PEFT, one adapter at a time.

``python -m benchmarks.steps.qlora_peft --shape 8b``. Both sides train on the same kind of rows over a 4-bit base, in
one process. Where bitsandbytes is installed PEFT runs on its ``Linear4bit``; elsewhere on linears that dequantise by
this project's kernel before each product, forward and backward, as QLoRA does: the result says which (``peft_on``).
``--shape tiny`` tries it out on a CPU, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.llama_shapes import SHAPES, decoder_config, hf_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, peft_loop, trial_specs
from cohort.kernels.nf4_weight import Nf4Weight, dequantise, quantise
from cohort.models.weight_formats import NF4
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS

LENGTH = 200


class _DequantisedProduct(torch.autograd.Function):
    """``x W^T`` with W dequantised in the forward pass and again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Nf4Weight) -> Tensor:
        ctx.weight = weight
        return torch.nn.functional.linear(x, _dequantised(weight, x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy @ _dequantised(ctx.weight, dy), None


def _dequantised(weight: Nf4Weight, like: Tensor) -> Tensor:
    out = torch.empty(weight.shape, dtype=like.dtype, device=like.device)
    dequantise(weight, out)
    return out


class Nf4Module(torch.nn.Linear):
    """What PEFT takes for a linear: its weight is a place holder, products are those of the 4-bit weight."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.quantised = quantise(linear.weight.detach())
        # PEFT asks for its dtype and device
        self.weight = torch.nn.Parameter(linear.weight.detach().new_zeros(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _DequantisedProduct.apply(x, self.quantised)
        return found


def _quantised(linear: torch.nn.Linear, *, bitsandbytes: Any) -> torch.nn.Module:
    if bitsandbytes is None:
        return Nf4Module(linear)
    found = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=False, compute_dtype=linear.weight.dtype, quant_type="nf4"
    )
    found.weight = bitsandbytes.nn.Params4bit(
        linear.weight.detach(), requires_grad=False, quant_type="nf4", compress_statistics=True
    )
    return found.to(linear.weight.device)


def qlora_step(
    shape: str, *, num_layers: int | None, r: int, batch_size: int, rows: Any, device: str
) -> tuple[Any, str]:
    """Return a step of QLoRA by PEFT, and what it runs on."""
    from transformers import LlamaConfig, LlamaForCausalLM

    bitsandbytes = importlib.import_module("bitsandbytes") if importlib.util.find_spec("bitsandbytes") else None
    config = LlamaConfig(**hf_config(shape, num_layers=num_layers), dtype="bfloat16")
    config._attn_implementation = "sdpa"
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    for module in list(model.model.layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, _quantised(child, bitsandbytes=bitsandbytes))
    if device == "cuda":
        torch.cuda.empty_cache()
    step, _ = peft_loop(model, rows, batch_size=batch_size, r=r, device=device)
    return step, "bitsandbytes" if bitsandbytes else "dequantise, then multiply, by this project's kernel"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--r", type=int, default=32)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--token-budget", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(options.shape, num_layers=options.num_layers)
    rows = rows_of_lengths([(LENGTH * 2 // 5, LENGTH - LENGTH * 2 // 5)] * 64, vocab_size=config.vocab_size)
    peft: dict[int, float] = {}
    runs_on = ""
    for batch_size in options.batch_sizes:
        step, runs_on = qlora_step(
            options.shape, num_layers=options.num_layers, r=options.r, batch_size=batch_size, rows=rows, device=device
        )
        peft[batch_size] = batch_size * LENGTH / median_seconds(step, repeats=options.repeats + 3, warmups=3)
        del step
        if device == "cuda":
            torch.cuda.empty_cache()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype, weight_format=NF4)
    found = []
    for batch_size in options.batch_sizes:
        specs = trial_specs([options.r] * options.adapters, batch_size=batch_size)
        executor = build_executor(decoder, specs, rows, token_budget=options.token_budget, graph_tokens=GRAPH_TOKENS)
        seconds = median_seconds(executor.step, repeats=options.repeats)
        del executor
        packed = options.adapters * batch_size * LENGTH / seconds
        found.append(
            {
                "batch_size": batch_size,
                "peft_tokens_per_second": peft[batch_size],
                "packed_tokens_per_second": packed,
                "packed_step_ms": seconds * 1e3,
                "ratio": packed / peft[batch_size],
            }
        )
    print_table(found, columns=list(found[0]))
    gib = decoder.num_bytes / 2**30
    headline = {f"nf4_vs_qlora_peft_bs{row['batch_size']}": row["ratio"] for row in found}
    headline |= {"nf4_vs_qlora_peft": found[0]["ratio"], f"nf4_decoder_gib_{options.shape}": gib}
    write_result(
        options.out or RESULTS / f"qlora_peft_{options.shape}.json",
        question="How much faster do 32 adapters train on an nf4 base in one pack than one at a time by PEFT's QLoRA?",
        headline=headline,
        rows=found,
        notes={"peft_on": runs_on, "length": LENGTH, "adapters": options.adapters, "r": options.r},
    )


if __name__ == "__main__":
    main()
