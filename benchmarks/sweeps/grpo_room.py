"""Memory and kernels that a GRPO sweep takes before its first step: rank rows, positions of answers, compiling."""

from __future__ import annotations

import argparse
import time

import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.memory.size_inputs import rank_row_bytes
from cohort.models.decoder import Decoder
from cohort.serving.kv_blocks import BLOCK_ROWS

__all__ = ["ANSWERS", "LONGEST", "PROMPTS", "RANKS", "TRIALS", "answer_tokens", "compile_kernels", "rank_row_bytes_of"]

TRIALS, PROMPTS, ANSWERS, LONGEST = 16, 8, 8, 256
RANKS = (8, 16, 32, 16)


def compile_kernels(decoder: Decoder, options: argparse.Namespace, *, numerics: Numerics) -> None:
    """Compile what training passes launch by all cores, so that no first step waits for one after the other."""
    if decoder.device.type != "cuda":
        return
    from cohort.machine.compile_ahead.launches import collect_launches
    from cohort.machine.compile_ahead.task_kernels import PASS_TOKENS
    from cohort.machine.compile_ahead.workers import KernelCompiler

    begun = time.perf_counter()
    try:
        with KernelCompiler() as compiler:
            collect_launches(
                decoder,
                compiler=compiler,
                target_linears=decoder.linears,
                adapters=[AdapterSpec(r=r, lora_alpha=1.0) for r in sorted(set(RANKS))],
                usual=200,
                pass_tokens=[
                    *(tokens for tokens in PASS_TOKENS if tokens < options.token_budget),
                    options.token_budget,
                ],
                numerics=numerics,
            )
            found = compiler.wait()
        print(f"{found.num_kernels} kernels compiled in {time.perf_counter() - begun:.1f} s", flush=True)
    except Exception as error:  # as in a run: the pass that needs a kernel compiles it
        print(f"kernels are compiled as they are needed ({type(error).__name__}: {error})", flush=True)


def rank_row_bytes_of(decoder: Decoder) -> int:
    from cohort.adapters.layout import AdapterLayout

    return rank_row_bytes(AdapterLayout(dict(decoder.linears)), has_compute_copy=decoder.device.type == "cuda")


def answer_tokens(decoder: Decoder, longest: int, *, kept_bytes: int) -> int:
    """Return positions for all answers at once, at most what half of the free memory holds."""
    config = decoder.config
    wanted = TRIALS * PROMPTS * ANSWERS * (longest + 2 * BLOCK_ROWS) + TRIALS * PROMPTS * 512
    if decoder.device.type != "cuda":
        return wanted
    position = 2 * config.num_layers * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    free = torch.cuda.mem_get_info()[0] - kept_bytes
    return int(min(wanted, max(free, 0) * 0.5 // position))
