"""One training step, three ways: the frozen backbone alone, a pack, and PEFT with transformers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.llama_shapes import hf_config
from cohort.adapters.bank import aligned_rank
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.packed_linear import SlotTable
from cohort.models.decoder import Decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.token_losses import token_losses
from cohort.training.trial import TrialSpec

__all__ = [
    "alternating_medians",
    "build_executor",
    "frozen_step",
    "median_seconds",
    "peft_loop",
    "peft_step",
    "trial_specs",
]


def median_seconds(step: Callable[[], object], *, repeats: int = 5, warmups: int = 2) -> float:
    """Return the median wall time of ``step``, device work included."""
    for _ in range(warmups):
        step()
    _wait()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alternating_medians(
    steps: Mapping[str, Callable[[], object]], *, repeats: int = 5, warmups: int = 2
) -> dict[str, float]:
    """Return the median wall time of each of ``steps``, which take turns one by one.

    Every other turn goes backwards: what comes after a step depends on the clocks and the caches that it leaves.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(warmups + repeats):
        for name, step in list(steps.items())[:: -1 if turn % 2 else 1]:
            _wait()
            start = time.perf_counter()
            step()
            _wait()
            if turn >= warmups:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items() if found}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def trial_specs(ranks: Sequence[int], *, batch_size: int, learning_rate: float = 1e-4) -> list[TrialSpec]:
    """Return one trial for each rank."""
    return [
        TrialSpec(
            trial_id=index,
            seed=index,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=learning_rate,
            batch_size=batch_size,
            num_steps=10_000,
        )
        for index, r in enumerate(ranks)
    ]


def build_executor(
    decoder: Decoder,
    specs: Sequence[TrialSpec],
    rows: TokenisedRows,
    *,
    token_budget: int,
    graph_tokens: int = 0,
    numerics: Numerics = Numerics.FAST,
) -> Executor:
    """Return an executor in which all of ``specs`` are resident; it records passes of up to ``graph_tokens``."""
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(specs),
            num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            graph_tokens=graph_tokens,
            numerics=numerics,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    for spec in specs:
        executor.load(spec)
    return executor


def frozen_step(decoder: Decoder, rows: TokenisedRows, row_ids: Sequence[int]) -> Callable[[], object]:
    """Return forward, loss and the gradient down to the first layer's input, with no adapter anywhere."""
    samples = [SlotSample(slot=-1, sample=rows.sample(row_id)) for row_id in row_ids]
    batch = pack(samples, num_slots=0, device=decoder.device)
    nothing = SlotTable(row_starts=(), ranks=(), scales=(), dropouts=())
    context = LoraContext(factors={}, slots=nothing, segments=batch.segments)
    weights_T = torch.ones(batch.num_rows, device=decoder.device) / batch.num_rows

    def step() -> None:
        token_losses(decoder, batch, context).backward(weights_T)

    return step


def peft_step(
    shape: str,
    rows: TokenisedRows,
    *,
    batch_size: int,
    r: int = 16,
    device: str = "cuda",
    num_layers: int | None = None,
) -> tuple[Callable[[], int], Any]:
    """Return a PEFT + transformers step that trains on the next ``batch_size`` rows, returns its tokens; and the model.

    Its fastest plain setting: bf16, SDPA attention, fused AdamW, no gradient checkpointing, no padding at batch 1.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**hf_config(shape, num_layers=num_layers), dtype="bfloat16")
    config._attn_implementation = "sdpa"
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    return peft_loop(model, rows, batch_size=batch_size, r=r, device=device)


def peft_loop(
    model: Any,
    rows: TokenisedRows,
    *,
    batch_size: int,
    r: int = 16,
    device: str = "cuda",
    targets: str | list[str] = "all-linear",
    parameters: Sequence[str] = (),
) -> tuple[Callable[[], int], Any]:
    """Return a step that trains a LoRA adapter on ``model`` as a plain loop does; and the PEFT model.

    Args:
        targets: PEFT's ``target_modules``.
        parameters: PEFT's ``target_parameters``: stacked experts.
    """
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=r, lora_alpha=2 * r, target_modules=targets, task_type="CAUSAL_LM")
    lora.target_parameters = list(parameters) or None
    model = get_peft_model(model, lora).to(device)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    place = 0

    def step() -> int:
        nonlocal place
        samples = [rows.sample((place + i) % len(rows)) for i in range(batch_size)]
        place += batch_size
        longest = max(len(sample.tokens) for sample in samples)
        tokens = torch.zeros(batch_size, longest, dtype=torch.long)
        labels = torch.full((batch_size, longest), -100, dtype=torch.long)
        mask = torch.zeros(batch_size, longest, dtype=torch.long)
        for i, sample in enumerate(samples):
            length = len(sample.tokens)
            tokens[i, :length] = torch.from_numpy(sample.tokens.astype("int64"))
            trained = torch.from_numpy(sample.trained)
            labels[i, :length] = torch.where(trained, tokens[i, :length], labels[i, :length])
            mask[i, :length] = 1
        inputs = {"input_ids": tokens.to(device), "labels": labels.to(device)}
        if not bool(mask.all()):
            inputs["attention_mask"] = mask.to(device)
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return sum(len(sample.tokens) for sample in samples)

    return step, model
