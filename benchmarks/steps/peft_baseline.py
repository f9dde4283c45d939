"""What a PEFT + transformers step at batch 1 costs in each plain setting, and where its time goes: host or GPU."""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, hf_config, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu

LENGTH = 200


def build(shape: str, *, adapter_dtype: str, num_layers: int | None) -> tuple[Any, list[torch.nn.Parameter]]:
    """Return a PEFT model on the GPU and what it trains; ``adapter_dtype``: float32 (PEFT's default) or bfloat16."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**hf_config(shape, num_layers=num_layers), dtype="bfloat16")
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    peft = get_peft_model(model, lora, autocast_adapter_dtype=adapter_dtype == "float32")
    peft.train()
    return peft, [p for p in peft.parameters() if p.requires_grad]


def one_step(
    model: Any, parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, *, tokens: Any, clip: bool
) -> Callable[[], None]:
    """Return one training step on ``tokens`` [1, L], all trained, from a host batch as a data loader gives it."""
    host = torch.from_numpy(tokens.astype("int64")).unsqueeze(0)

    def step() -> None:
        inputs = host.to("cuda")
        model(input_ids=inputs, labels=inputs).loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu()
    vocabulary = decoder_config(arguments.shape).vocab_size
    rows = rows_of_lengths([(80, LENGTH - 80)], vocab_size=vocabulary)
    found = []
    for adapter_dtype in ("float32", "bfloat16"):
        model, parameters = build(arguments.shape, adapter_dtype=adapter_dtype, num_layers=arguments.num_layers)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        for clip, collect in itertools.product((True, False), (True, False)):
            step = one_step(model, parameters, optimizer, tokens=rows.sample(0).tokens, clip=clip)
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            if not collect:
                gc.collect()
                gc.freeze()
                gc.disable()
            times = []
            for _ in range(arguments.repeats):
                start = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - start) * 1e3)
            gc.enable()
            gc.unfreeze()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                step()
                torch.cuda.synchronize()
            kernels = profiler.key_averages()
            found.append(
                {
                    "adapters": adapter_dtype,
                    "clip": clip,
                    "garbage_collector": collect,
                    "step_ms": statistics.median(times),
                    "gpu_busy_ms": sum(kernel.self_device_time_total for kernel in kernels) / 1e3,
                    "launches": sum(kernel.count for kernel in kernels if kernel.self_device_time_total > 0),
                }
            )
            print_table(found[-1:], columns=list(found[0]))
        del model, parameters, optimizer, step
        torch.cuda.empty_cache()
    write_result(
        arguments.out or RESULTS / f"peft_baseline_{arguments.shape}.json",
        question="What does a PEFT step at batch 1 x 200 tokens cost, and is it the host or the GPU?",
        headline={f"peft_{arguments.shape}_1x200_ms": min(row["step_ms"] for row in found)},
        rows=found,
    )


if __name__ == "__main__":
    main()
