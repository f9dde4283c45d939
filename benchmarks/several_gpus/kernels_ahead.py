"""Compiles the kernels of ranks on all cores before they run, as a run does, so that no measurement waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.machine.compile_ahead.launched_model import launched_model, stand_in_decoder
from cohort.machine.compile_ahead.launches import collect_launches, kinds_of_adapters
from cohort.machine.compile_ahead.task_kernels import PASS_TOKENS, STEP_TOKENS
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.ranks.rank_group import RankGroupPlan
from cohort.training.device_memory import release_cached

__all__ = ["compile_kernels"]


def compile_kernels(
    config: DecoderConfig,
    *,
    adapters: Sequence[AdapterSpec],
    usual: int,
    token_budget: int,
    group: RankGroupPlan | None = None,
) -> None:
    """Compile what ranks on GPUs will launch in bfloat16; nothing on a CPU.

    Args:
        usual: Tokens of a usual row.
        token_budget: Most tokens of a pass.
        group: How ranks hold the model together; None where each has a whole one, or parts of layers.
    """
    if not torch.cuda.is_available():
        return
    begun, device = time.perf_counter(), torch.device("cuda")
    model = launched_model(group, config=config, layout=AdapterLayout(linear_shapes(config)))
    with KernelCompiler() as compiler:
        try:
            collect_launches(
                stand_in_decoder(model.config, dtype=torch.bfloat16, device=device, region=model.region),
                compiler=compiler,
                target_linears=model.layout.linears,
                adapters=kinds_of_adapters(adapters),
                usual=usual,
                pass_tokens=[tokens for tokens in PASS_TOKENS if tokens <= token_budget],
                step_tokens=[tokens for tokens in STEP_TOKENS if tokens <= token_budget],
            )
        except Exception as error:  # as in a run: the pass that needs a kernel compiles it
            print(f"kernels are compiled as they are needed ({type(error).__name__}: {error})", flush=True)
        print(f"{compiler.wait()} in {time.perf_counter() - begun:.1f} s", flush=True)
    release_cached(device)
