"""Which strategy ``auto`` is on several GPUs: of those that fit, the one that is predicted fastest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import Parallelism, ShardingError, parallelism_of
from cohort.core.errors import InputError
from cohort.core.units import format_bytes
from cohort.machine.devices import hardware_of
from cohort.memory.demand import Demand
from cohort.memory.group_memory import group_memory
from cohort.memory.rank_groups import GROUP_STRATEGIES, choose_group, group_problems
from cohort.memory.weight_placement import choose_placement
from cohort.models.counts import count_model, weight_bytes
from cohort.scheduling.strategy_choice import StrategyOption, StrategyWork, choose_strategy, predict_seconds
from cohort.tasks.task_file import TaskFile

__all__ = ["SettledStrategy", "settle_strategy", "strategy_work", "unfit_for_auto"]


def unfit_for_auto(task: TaskFile, strategy: str) -> str | None:
    """Return why ``auto`` leaves a strategy that works to those who ask for it: it predicts steps, not answers."""
    if strategy == "pipeline" and task.evaluation.generates:
        return "answers for the metric pass its stages one at a time"
    if task.rewards is not None:
        return "trials train on answers that each rank decodes by itself"
    return None


@dataclass(frozen=True, kw_only=True)
class SettledStrategy:
    """A strategy, and for the user why it was chosen; None where it was not ``auto`` that chose."""

    name: str
    note: str | None = None


def settle_strategy(demand: Demand, *, host_bytes: int | None = None, began_with: str | None = None) -> SettledStrategy:
    """Return the strategy of a task; ``auto`` where its placement of weights decides.

    On a CPU processes share one memory and no link is to be predicted: there the placement decides.

    Args:
        host_bytes: As of :func:`choose_placement`.
        began_with: The strategy of a run that is resumed, which keeps it while the number of ranks allows.
    """
    task, num_ranks = demand.task, demand.num_ranks
    if num_ranks == 1 and task.strategy in GROUP_STRATEGIES:
        why = f"one GPU divides nothing, so {task.strategy} has no effect (unless torchrun starts several processes)"
        return SettledStrategy(name="auto", note=f"strategy: {why}")
    if task.strategy != "auto" or num_ranks == 1:
        return SettledStrategy(name=task.strategy)
    problems = {
        strategy: next((problem.found for problem in group_problems(demand, strategy)), None)
        for strategy in GROUP_STRATEGIES
    }
    if began_with is not None:
        keeps = began_with in GROUP_STRATEGIES and problems[began_with] is None
        return SettledStrategy(name=began_with if keeps else "auto")
    if not demand.is_on_gpu:
        return SettledStrategy(name="auto")
    problems = {strategy: found or unfit_for_auto(task, strategy) for strategy, found in problems.items()}
    choice = choose_strategy(
        [
            _by_placement(demand, host_bytes),
            *(_of_group(demand, strategy, problem=problem) for strategy, problem in problems.items()),
        ]
    )
    if choice is None:
        # the placement's own error says what would help
        return SettledStrategy(name="auto")
    name = choice.strategy if choice.strategy in GROUP_STRATEGIES else "auto"
    return SettledStrategy(name=name, note=f"strategy: auto is {choice.strategy}; {choice.why}")


def strategy_work(demand: Demand) -> StrategyWork:
    """Return one step of all of a task's trials, as strategies are compared by it."""
    specs, rows, config, dtype = demand.specs, demand.rows, demand.config, demand.dtype
    num_examples = sum(spec.batch_size for spec in specs)
    divided, whole = _entries_of_shards(demand.layout)
    counts = count_model(config)
    weights = weight_bytes(config, dtype=dtype, weight_format=demand.machine.quantization)
    return StrategyWork(
        tokens=num_examples * float(rows.lengths.mean()),
        num_trials=len(specs),
        longest_row=int(rows.lengths.max()),
        num_layers=config.num_layers,
        # forward, and the gradient of the stream
        flops_per_token=2.0 * counts.linear_flops_per_token + counts.head_flops_per_token,
        weight_bytes=float(weights),
        layer_bytes=counts.linear_parameters / counts.parameters * weights / config.num_layers,
        stream_bytes=float(config.hidden_size * dtype.itemsize),
        rank_rows=sum(spec.adapter.num_rows for spec in specs),
        token_rows=sum(spec.batch_size * spec.adapter.num_rows_in_passes for spec in specs) / num_examples,
        divided_entries=float(divided),
        whole_entries=float(whole),
    )


def _entries_of_shards(layout: AdapterLayout) -> tuple[int, int]:
    """Return the entries of a rank row that shards divide, and those that each has whole."""
    divided = whole = 0
    for module, (in_features, out_features) in layout.linears.items():
        try:
            is_column = parallelism_of(module) is Parallelism.COLUMN
        except ShardingError:
            # shards are refused then, whatever they would take
            is_column = True
        divided += out_features if is_column else in_features
        whole += in_features if is_column else out_features
    return divided, whole


def _seconds(demand: Demand, strategy: str, *, divided_layers: int = 0) -> float:
    hardware = hardware_of(demand.machine)
    return predict_seconds(
        strategy, strategy_work(demand), hardware, num_gpus=demand.num_ranks, divided_layers=divided_layers
    )


def _by_placement(demand: Demand, host_bytes: int | None) -> StrategyOption:
    """Return replicas, or adapter parallelism where the model does not fit on each GPU."""
    try:
        placement = choose_placement(demand, host_bytes=host_bytes)
    except InputError as error:
        return StrategyOption(strategy="replicas", seconds=0.0, device_bytes=0, problem=error.problems[0].found)
    weights = placement.weights
    strategy = "adapter_parallel" if weights.are_divided else "replicas"
    seconds = _seconds(demand, strategy, divided_layers=len(weights.layers) * weights.are_divided)
    return StrategyOption(
        strategy=strategy,
        # layers that come from the host pass its link once forward and once backward
        seconds=max(seconds, placement.seconds_per_pass),
        device_bytes=placement.device_bytes,
    )


def _of_group(demand: Demand, strategy: str, *, problem: str | None) -> StrategyOption:
    """Return a strategy whose ranks hold the model together, if it fits."""
    if problem is not None:
        return StrategyOption(strategy=strategy, seconds=0.0, device_bytes=0, problem=problem)
    held = group_memory(choose_group(demand, strategy), demand)
    row_bytes = replace(demand, layout=held.layout).row_bytes
    passes = held.needs.recomputed_bytes or held.needs.pass_bytes
    needed = held.weight_bytes + max(demand.rank_rows) * row_bytes + passes(demand.longest_group)
    if needed > demand.free_bytes * (1 - demand.task.memory.margin):
        problem = f"takes {format_bytes(int(needed))} on each GPU"
    return StrategyOption(
        strategy=strategy, seconds=_seconds(demand, strategy), device_bytes=held.weight_bytes, problem=problem
    )
