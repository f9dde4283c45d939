"""How long a step takes with each strategy on several GPUs, by arithmetic, and which one is chosen.

C(T) are one GPU's seconds for T tokens, h those in which the host launches a pass kernel by kernel, W a layer's bytes:

- replicas: max(C(T / n), h), recorded passes without h; the trials are divided, so n is at most their number;
- adapter parallelism: the same, and not below its copies, 2 G W (n - 1) / n over the link, G divided layers;
- tensor parallelism: max(C(T) / n + all-reduces, h): two a layer forward and two backward;
- pipeline: micro-batches on n stages by the simulator, with the no-ops that the bubble lemma asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.pipelining.simulation import simulate_pipeline
from cohort.scheduling.cost.analytic import GPU_LAYER_SECONDS, HOST_LAYER_SECONDS, MEMORY_SHARE, PRODUCT_SHARE
from cohort.scheduling.cost.hardware import Hardware

__all__ = ["StrategyChoice", "StrategyOption", "StrategyWork", "choose_strategy", "predict_seconds"]

# seconds of one all-reduce or message besides its bytes
MESSAGE_SECONDS = 15e-6
# a pass of fewer tokens may be recorded, and is launched at once
RECORDED_TOKENS = 8192
# micro-batches of a pipeline: large enough to be no host's, small enough to be many
MICRO_BATCH_TOKENS = (1024, 2048, 4096, 8192)
# steps of a window whose pipeline is simulated
WINDOW_STEPS = 8
# replicas and adapter parallelism have the results of one GPU step by step, and every feature: another strategy has to
# be faster by this factor
PREFERENCE = 0.9
PREFERRED = ("replicas", "adapter_parallel")


@dataclass(frozen=True, kw_only=True)
class StrategyWork:
    """One step of all resident trials.

    Attributes:
        tokens: Of all trials together.
        num_trials: How many.
        longest_row: Tokens of the longest row: no micro-batch is smaller.
        num_layers: Of the base model.
        flops_per_token: Forward and input gradients of the whole model.
        weight_bytes, layer_bytes: Of the whole model, and of one layer's linears.
        stream_bytes: Of one token's residual stream.
    """

    tokens: float
    num_trials: int
    longest_row: int
    num_layers: int
    flops_per_token: float
    weight_bytes: float
    layer_bytes: float
    stream_bytes: float


@dataclass(frozen=True, kw_only=True)
class StrategyOption:
    """A strategy that could be chosen.

    Attributes:
        strategy: As a task file calls it.
        seconds: Predicted, of one step of all trials.
        device_bytes: Of the base model on each GPU.
        problem: Why it cannot be chosen; None where it can.
    """

    strategy: str
    seconds: float
    device_bytes: float
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrategyChoice:
    """What was chosen, and why."""

    strategy: str
    why: str


def predict_seconds(
    strategy: str, work: StrategyWork, hardware: Hardware, *, num_gpus: int, divided_layers: int = 0
) -> float:
    """Return the predicted seconds of a step.

    Args:
        divided_layers: Of adapter parallelism.
    """
    if strategy == "pipeline":
        return _pipeline_seconds(work, hardware, num_stages=num_gpus)
    # every tensor parallel rank has the whole stream of rows
    tokens = work.tokens if strategy == "tensor" else work.tokens / min(num_gpus, work.num_trials)
    launched = work.num_layers * (GPU_LAYER_SECONDS if tokens <= RECORDED_TOKENS else HOST_LAYER_SECONDS)
    if strategy == "tensor":
        traffic = 2 * (num_gpus - 1) / num_gpus * work.stream_bytes * work.tokens * 4 * work.num_layers
        reduces = 4 * work.num_layers * MESSAGE_SECONDS + traffic / max(hardware.link_bytes_per_second, 1e9)
        return max(_compute(work, hardware, tokens=work.tokens) / num_gpus + reduces, launched)
    computed = _compute(work, hardware, tokens=tokens)
    if strategy == "replicas":
        return max(computed, launched)
    pulled = (
        2 * divided_layers * work.layer_bytes * (num_gpus - 1) / num_gpus / max(hardware.link_bytes_per_second, 1e9)
    )
    return max(computed, launched, pulled)


def choose_strategy(options: Sequence[StrategyOption]) -> StrategyChoice | None:
    """Return the fastest of the options without a problem, and all their predictions in words; None where none is left.

    Equal ones go to the first; those that are not preferred have to be faster by a tenth.
    """
    possible = [option for option in options if option.problem is None]
    if not possible:
        return None

    def effective(option: StrategyOption) -> float:
        return option.seconds * (1.0 if option.strategy in PREFERRED else 1 / PREFERENCE)

    chosen = min(possible, key=effective)
    told = [
        f"{option.strategy} {option.seconds:.2g} s"
        if option.problem is None
        else f"{option.strategy}: {option.problem}"
        for option in options
    ]
    return StrategyChoice(strategy=chosen.strategy, why=f"predicted for a step of all trials: {'; '.join(told)}")


def _compute(work: StrategyWork, hardware: Hardware, *, tokens: float) -> float:
    """Return one GPU's seconds for the whole model: products, or the reads of its weights."""
    products = tokens * work.flops_per_token / (hardware.flops_per_second * PRODUCT_SHARE)
    return max(products, 2 * work.weight_bytes / (hardware.bytes_per_second * MEMORY_SHARE))


def _pipeline_seconds(work: StrategyWork, hardware: Hardware, *, num_stages: int) -> float:
    """Return the least seconds of a step over sizes of micro-batches."""
    sizes = [size for size in MICRO_BATCH_TOKENS if size >= work.longest_row] or [work.longest_row]
    return min(_with_micro_batches(work, hardware, size=size, num_stages=num_stages) for size in sizes)


def _with_micro_batches(work: StrategyWork, hardware: Hardware, *, size: int, num_stages: int) -> float:
    # the batch of a trial is at least one micro-batch, and two of it stand the stages' number apart
    of_a_trial = max(1, math.ceil(work.tokens / work.num_trials / size))
    filled = of_a_trial * max(1, min(work.num_trials, math.ceil(work.tokens / size / of_a_trial)))
    no_ops = max(0, of_a_trial + num_stages - 1 - filled)
    each = _compute(work, hardware, tokens=work.tokens / filled) / num_stages
    # a stage launches its own layers only, and its backward pass is as long as its forward pass
    seconds = max(each, work.num_layers * HOST_LAYER_SECONDS / num_stages) / 2
    passes = ([seconds] * filled + [0.0] * no_ops) * WINDOW_STEPS
    sent = work.stream_bytes * work.tokens / filled / max(hardware.link_bytes_per_second, 1e9) + MESSAGE_SECONDS
    of_stages = [passes] * num_stages
    return simulate_pipeline(of_stages, of_stages, transfer_seconds=sent).seconds / WINDOW_STEPS
