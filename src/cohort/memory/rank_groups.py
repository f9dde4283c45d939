"""One model over the ranks of a group: whether a task can be trained so, and what is refused before it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from cohort.adapters.sharding import ShardingError, replicated_columns
from cohort.adapters.variants.vera import projection_widths
from cohort.core.errors import InputError, Problem
from cohort.core.numerics import Numerics
from cohort.core.units import counted
from cohort.memory.demand import Demand
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.models.weight_formats import PLAIN
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan, TensorGroup
from cohort.ranks.tensor.base_shards import check_degree
from cohort.scheduling.pipelines.stage_balance import balance_stages
from cohort.tasks.possible_values import possible_values
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS

__all__ = ["GROUP_STRATEGIES", "choose_group", "group_problems", "pipeline_group"]

GROUP_STRATEGIES = ("tensor", "pipeline")
"""Strategies whose ranks hold one model together and pass each other activations."""

# of a training row, whose answer alone has a loss: what the head computes
TRAINED_SHARE = 0.5
# A shared head keeps one more micro-batch in flight on every stage, and the head's weights: for less than this share of
# the time it is not worth them.
LEAST_GAIN = 0.02


def choose_group(demand: Demand, strategy: str) -> RankGroupPlan:
    """Return how the ranks hold the model of a task with one of :data:`GROUP_STRATEGIES`.

    Raises:
        InputError: everything of the task that does not work with the strategy.
    """
    if problems := list(group_problems(demand, strategy)):
        raise InputError(problems)
    if strategy == "tensor":
        return TensorGroup(size=demand.num_ranks)
    return pipeline_group(demand.config, num_stages=demand.num_ranks)


def pipeline_group(config: DecoderConfig, *, num_stages: int) -> PipelineGroup:
    """Return where a model is cut into stages: the slowest one is as fast as it can be.

    Stages share the loss head where that makes the slowest one faster by :data:`LEAST_GAIN`: whole layers leave up to a
    layer's time between two stages.
    """
    counts = count_model(config)
    head = counts.head_flops_per_token * TRAINED_SHARE / (counts.linear_flops_per_token / config.num_layers)
    layers = [1.0] * config.num_layers

    def cut(last: float) -> tuple[int, ...]:
        ranges = balance_stages(layers, num_stages=num_stages, last_seconds=last)
        return (*(begin for begin, _ in ranges), config.num_layers)

    alone, shared = PipelineGroup(cuts=cut(head)), PipelineGroup(cuts=cut(0.0), head_layers=head)
    slowest = replace(alone, head_layers=head).slowest(shares_head=False)
    gains = num_stages > 1 and shared.slowest(shares_head=True) * (1 + LEAST_GAIN) <= slowest
    return shared if gains else alone


def group_problems(demand: Demand, strategy: str) -> Iterator[Problem]:
    """Yield everything of a task that does not work with one of :data:`GROUP_STRATEGIES`."""
    task, machine, config = demand.task, demand.machine, demand.config
    others = "auto | replicas | adapter_parallel"

    def refused(key: str, found: str, allowed: str) -> Problem:
        hint = f"Change this, or write strategy: {others}."
        return Problem(where=task.where(key), found=found, allowed=allowed, hint=hint)

    if not torch.distributed.is_available():
        yield refused("strategy", strategy, f"{others}: this build of torch has no torch.distributed")
        return
    if config.bridged is not None:
        found = f"{strategy} with {config.architecture}, whose layers transformers computes"
        yield refused("strategy", found, f"{others}: the model is whole on each GPU")
        return
    if machine.numerics is Numerics.EXACT and machine.device.type == "cuda":
        yield refused("numerics", f"exact with strategy: {strategy}", "fast, where GPUs divide a model")
    if task.objective.reference_adapter is not None:
        yield refused(
            "objective.reference_adapter",
            f"{task.objective.reference_adapter} with strategy: {strategy}",
            "the base model as the reference: ranks that hold it together have no passes for another adapter",
        )
    if task.memory.host_streamed_layers not in ("auto", 0):
        yield refused(
            "memory.host_streamed_layers",
            f"{task.memory.host_streamed_layers} with strategy: {strategy}, whose ranks hold a part of the model each",
            "auto | 0 with this strategy",
        )
    if task.lora.modules_to_save:
        yield refused(
            "lora.modules_to_save",
            f"{', '.join(task.lora.modules_to_save)} with strategy: {strategy}",
            "adapters alone with this strategy: embedding and head are divided among the ranks",
        )
    if strategy == "tensor":
        yield from _tensor_problems(demand, refused)
    else:
        yield from _pipeline_problems(demand, refused)
        batch = task.objective.declared.compares_batch
        if demand.specs[0].objective.compares_batch and batch is not None:
            divided = [entry.name for entry in OBJECTIVE_DECLARATIONS.built_in() if entry.compares_batch is None]
            yield refused(
                "objective",
                f"{task.objective.type} with strategy: pipeline",
                f"{' | '.join(divided)}: {batch.why_undivided}",
            )
    for optim in map(str, possible_values(task, "optim")):
        declared = OPTIMIZER_DECLARATIONS.find(optim)
        if declared is not None and (why := declared.not_divided.get(strategy)) is not None:
            yield refused("training.optim", f"{optim} with strategy: {strategy}", f"another optimizer: {why}")


def _tensor_problems(demand: Demand, refused: Callable[[str, str, str], Problem]) -> Iterator[Problem]:
    task, machine, config, num_ranks = demand.task, demand.machine, demand.config, demand.num_ranks
    divides = True
    try:
        check_degree(config, num_ranks)
    except InputError as error:
        divides = False
        yield from (replace(problem, where=task.where("num_gpus")) for problem in error.problems)
    if machine.quantization != PLAIN.name or config.stored_quantization != PLAIN.name:
        yield refused(
            "quantization",
            f"{machine.quantization} with strategy: tensor",
            "none: quantised weights are not divided over ranks",
        )
    if any(
        spec.adapter.has_patterns or spec.adapter.has_frozen_rows or not spec.adapter.has_only_factors
        for spec in demand.specs
    ):
        yield refused(
            "lora",
            "DoRA, VeRA, PiSSA, OLoRA, or rank or alpha patterns with strategy: tensor",
            "plain LoRA, rsLoRA, LoRA+ and BD-LoRA: other adapters are not divided over ranks",
        )
        return
    if not divides:
        return
    reasons = dict[str, None]()
    for adapter in {spec.adapter for spec in demand.specs}:
        try:
            replicated_columns(demand.layout, adapter, size=num_ranks)
        except ShardingError as error:
            reasons[str(error)] = None
    for reason in reasons:
        yield refused("lora", reason, f"adapters that {num_ranks} ranks can train")


def _pipeline_problems(demand: Demand, refused: Callable[[str, str, str], Problem]) -> Iterator[Problem]:
    config, num_ranks = demand.config, demand.num_ranks
    if num_ranks > config.num_layers:
        yield Problem(
            where=demand.task.where("num_gpus"),
            found=f"{num_ranks} stages for a model with {counted(config.num_layers, 'layer')}",
            allowed=f"at most {config.num_layers} with strategy: pipeline",
            hint=f"Write num_gpus: {config.num_layers} (under torchrun: --nproc-per-node), or another strategy.",
        )
        return
    if demand.task.lora.target_parameters:
        yield refused(
            "lora.target_parameters",
            f"{', '.join(demand.task.lora.target_parameters)} with strategy: pipeline",
            "adapters on attention alone: factors of experts stand behind those of all layers, not with a stage's",
        )
        return
    plan = pipeline_group(config, num_stages=num_ranks)
    parts = [plan.local_layout(demand.layout, stage) for stage in range(num_ranks)]
    widest = {projection_widths(part) for part in parts if part.linears}
    if len(widest) > 1 and any(spec.adapter.use_vera is not None for spec in demand.specs):
        yield refused(
            "lora.use_vera",
            "use_vera with strategy: pipeline, where the widest adapted linears of the stages differ",
            "the same linears in every layer: VeRA's projections are as wide as the widest linear, and all share them",
        )
    empty = [stage for stage, part in enumerate(parts) if not part.linears]
    if empty:
        own = plan.layers(empty[0])
        yield refused(
            "lora",
            f"no adapted linear in layers {own.start} to {own.stop - 1}, which are stage {empty[0]} of the pipeline",
            "adapted linears in every stage",
        )
