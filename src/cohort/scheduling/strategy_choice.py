"""How long a step takes with each strategy on several GPUs, by arithmetic, and which one is chosen.

C(T) are one GPU's seconds for T tokens, h those in which the host launches a pass kernel by kernel, u those of the
optimizer, p those in which a layer's missing part passes the link:

- replicas: max(C(T / n), h) + u / n, recorded passes without h; the trials are divided, so n is at most their number;
- adapter parallelism: the same, but none of the 2 (G - 2) visits of G divided layers that copy them is shorter than p,
  and copies take a little from products;
- tensor parallelism: max(C(T) / n + all-reduces, h) + u: two all-reduces a layer forward and two backward. A rank has
  all trials with all tokens: of their factors it has a part, and the ones that are not divided whole;
- pipeline: micro-batches on n stages by the simulator, with the no-ops that the bubble lemma asks for, + u / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.scheduling.cost.analytic import (
    ADAPTER_SHARE,
    GPU_LAYER_SECONDS,
    HOST_LAYER_SECONDS,
    MEMORY_SHARE,
    OPTIMIZER_BYTES,
    PRODUCT_SHARE,
)
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.pipelines.simulation import simulate_pipeline

__all__ = ["StrategyChoice", "StrategyOption", "StrategyWork", "choose_strategy", "predict_seconds"]

# of a link's data sheet, under products: a part of a layer that each of two H200 pulls from the other (364 to 389 of
# 450 GB/s), and an all-reduce of 34 MB (147 to 160); benchmarks/results/several_gpus_profile_70b.json, as what follows
PULL_SHARE = 0.8
REDUCE_SHARE = 0.35
# products lose a part of the time in which a pull is under way (3.5 to 4.3 ms of a pass with 12 pulls of 2.4 ms, next
# to all layers resident); of more than two ranks each copies its own part within the GPU, at a share of the
# memory's rate, and no product runs meanwhile
PULL_LOAD = 0.12
COPY_SHARE = 0.4
# of a pass next to a part of a model that no GPU holds
PASS_TOKENS = 2048
# seconds of one all-reduce or message besides its bytes
MESSAGE_SECONDS = 15e-6
# layers that a pass finds in their buffers where it begins, and where it turns
HELD_LAYERS = 2
# a pass of fewer tokens may be recorded, and is launched at once
RECORDED_TOKENS = 8192
# micro-batches of a pipeline: large enough to be no host's, small enough to be many
MICRO_BATCH_TOKENS = (1024, 2048, 4096, 8192)
# steps of a window whose pipeline is simulated
WINDOW_STEPS = 8
# replicas and adapter parallelism have the results of one GPU step by step, and every feature: another strategy has to
# be faster by this factor, which bounds what keeping them may cost
PREFERENCE = 0.95
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
        rank_rows: Of all adapters.
        token_rows: Rank rows of the adapter of a token, on average.
        divided_entries, whole_entries: Of a rank row: those that shards divide, and those that every shard has.
        pass_tokens: Most of a rank's pass: each pulls the layers again.
    """

    tokens: float
    num_trials: int
    longest_row: int
    num_layers: int
    flops_per_token: float
    weight_bytes: float
    layer_bytes: float
    stream_bytes: float
    rank_rows: int = 0
    token_rows: float = 0.0
    divided_entries: float = 0.0
    whole_entries: float = 0.0
    pass_tokens: float = PASS_TOKENS

    def entries(self, *, shards: int = 1) -> float:
        """Return the entries of a rank row on one of ``shards`` shards."""
        return self.whole_entries + self.divided_entries / shards


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
        updates = _update(hardware, rank_rows=work.rank_rows, entries=work.entries() / num_gpus)
        return _pipeline_seconds(work, hardware, num_stages=num_gpus) + updates
    # every tensor parallel rank has the whole stream of rows
    tokens = work.tokens if strategy == "tensor" else work.tokens / min(num_gpus, work.num_trials)
    launched = work.num_layers * (GPU_LAYER_SECONDS if tokens <= RECORDED_TOKENS else HOST_LAYER_SECONDS)
    if strategy == "tensor":
        traffic = 2 * (num_gpus - 1) / num_gpus * work.stream_bytes * work.tokens * 4 * work.num_layers
        reduces = 4 * work.num_layers * MESSAGE_SECONDS + traffic / _link(hardware, REDUCE_SHARE)
        entries = work.entries(shards=num_gpus)
        computed = _products(work, hardware, tokens=tokens) / num_gpus + _adapters(work, hardware, tokens, entries)
        updates = _update(hardware, rank_rows=work.rank_rows, entries=entries)
        return max(computed + reduces, launched) + updates
    computed = _products(work, hardware, tokens=tokens) + _adapters(work, hardware, tokens, work.entries())
    own_rows = work.rank_rows / min(num_gpus, work.num_trials)
    updates = _update(hardware, rank_rows=own_rows, entries=work.entries())
    if strategy == "replicas" or not divided_layers:
        return max(computed, launched) + updates
    pull = work.layer_bytes * (num_gpus - 1) / num_gpus / _link(hardware, PULL_SHARE)
    # forward and backward; a layer that is not there yet is on its way while the one before it computes
    passes = max(1, math.ceil(tokens / work.pass_tokens))
    visit, copied = computed / passes / (2 * work.num_layers), 2 * passes * max(0, divided_layers - HELD_LAYERS)
    own = 0.0 if num_gpus == 2 else work.layer_bytes / num_gpus / (hardware.bytes_per_second * COPY_SHARE)
    return max(computed + copied * (max(pull, visit + PULL_LOAD * pull + own) - visit), launched) + updates


def choose_strategy(options: Sequence[StrategyOption]) -> StrategyChoice | None:
    """Return the fastest of the options without a problem, and all their predictions in words; None where none is left.

    Equal ones go to the first; those that are not preferred have to be faster by a twentieth.
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


def _link(hardware: Hardware, share: float) -> float:
    """Return the bytes a second that reach a GPU from others."""
    return max(hardware.link_bytes_per_second * share, 1e9)


def _products(work: StrategyWork, hardware: Hardware, *, tokens: float) -> float:
    """Return one GPU's seconds for the whole base model: products, or the reads of its weights."""
    products = tokens * work.flops_per_token / (hardware.flops_per_second * PRODUCT_SHARE)
    return max(products, 2 * work.weight_bytes / (hardware.bytes_per_second * MEMORY_SHARE))


def _adapters(work: StrategyWork, hardware: Hardware, tokens: float, entries: float) -> float:
    """Return one GPU's seconds for the products with factors of ``entries`` a rank row, forward and both gradients."""
    return 6 * tokens * work.token_rows * entries / (hardware.flops_per_second * ADAPTER_SHARE)


def _update(hardware: Hardware, *, rank_rows: float, entries: float) -> float:
    """Return one GPU's seconds for the optimizer's step of ``rank_rows`` rank rows."""
    return OPTIMIZER_BYTES * rank_rows * entries / (hardware.bytes_per_second * MEMORY_SHARE)


def _pipeline_seconds(work: StrategyWork, hardware: Hardware, *, num_stages: int) -> float:
    """Return the least seconds of a step over sizes of micro-batches."""
    sizes = [size for size in MICRO_BATCH_TOKENS if size >= work.longest_row] or [work.longest_row]
    return min(_with_micro_batches(work, hardware, size=size, num_stages=num_stages) for size in sizes)


def _with_micro_batches(work: StrategyWork, hardware: Hardware, *, size: int, num_stages: int) -> float:
    # the batch of a trial is at least one micro-batch, and two of it stand the stages' number apart
    of_a_trial = max(1, math.ceil(work.tokens / work.num_trials / size))
    filled = of_a_trial * max(1, min(work.num_trials, math.ceil(work.tokens / size / of_a_trial)))
    no_ops = max(0, of_a_trial + num_stages - 1 - filled)
    tokens = work.tokens / filled
    computed = _products(work, hardware, tokens=tokens) + _adapters(work, hardware, tokens, work.entries())
    each = computed / num_stages
    # a stage launches its own layers only, and its backward pass is as long as its forward pass
    seconds = max(each, work.num_layers * HOST_LAYER_SECONDS / num_stages) / 2
    passes = ([seconds] * filled + [0.0] * no_ops) * WINDOW_STEPS
    sent = work.stream_bytes * tokens / _link(hardware, PULL_SHARE) + MESSAGE_SECONDS
    of_stages = [passes] * num_stages
    return simulate_pipeline(of_stages, of_stages, transfer_seconds=sent).seconds / WINDOW_STEPS
