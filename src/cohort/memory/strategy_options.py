"""Which strategy ``auto`` is on several GPUs: of those that fit, the one that is predicted fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import Parallelism, ShardingError, parallelism_of
from cohort.core.errors import InputError
from cohort.core.units import format_bytes
from cohort.data.tokenised import TokenisedRows
from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine
from cohort.memory.group_memory import group_memory
from cohort.memory.rank_groups import GROUP_STRATEGIES, choose_group, group_problems
from cohort.memory.size_inputs import rank_row_bytes, task_optimizer
from cohort.memory.weight_placement import choose_placement
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model, weight_bytes
from cohort.scheduling.strategy_choice import StrategyOption, StrategyWork, choose_strategy, predict_seconds
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec

__all__ = ["SettledStrategy", "settle_strategy", "strategy_work", "unfit_for_auto"]


def unfit_for_auto(task: TaskFile, strategy: str) -> str | None:
    """Return why ``auto`` leaves a strategy that works to those who ask for it: it predicts steps, not answers."""
    if strategy == "pipeline" and task.evaluation.generates:
        return "answers for the metric pass its stages one at a time"
    return None


@dataclass(frozen=True, kw_only=True)
class SettledStrategy:
    """A strategy, and for the user why it was chosen; None where it was not ``auto`` that chose."""

    name: str
    note: str | None = None


def settle_strategy(
    task: TaskFile,
    machine: Machine,
    *,
    num_ranks: int,
    config: DecoderConfig,
    layout: AdapterLayout,
    specs: Sequence[TrialSpec],
    rows: TokenisedRows,
    host_bytes: int | None = None,
    began_with: str | None = None,
) -> SettledStrategy:
    """Return the strategy of a task; ``auto`` where its placement of weights decides.

    On a CPU processes share one memory and no link is to be predicted: there the placement decides.

    Args:
        began_with: The strategy of a run that is resumed, which keeps it while the number of ranks allows.
    """
    if num_ranks == 1 and task.strategy in GROUP_STRATEGIES:
        why = f"one GPU divides nothing, so {task.strategy} has no effect (unless torchrun starts several processes)"
        return SettledStrategy(name="auto", note=f"strategy: {why}")
    if task.strategy != "auto" or num_ranks == 1:
        return SettledStrategy(name=task.strategy)
    problems = {
        strategy: next(
            (
                problem.found
                for problem in group_problems(
                    task, machine, strategy=strategy, num_ranks=num_ranks, config=config, layout=layout, specs=specs
                )
            ),
            None,
        )
        for strategy in GROUP_STRATEGIES
    }
    if began_with is not None:
        keeps = began_with in GROUP_STRATEGIES and problems[began_with] is None
        return SettledStrategy(name=began_with if keeps else "auto")
    if machine.device.type != "cuda":
        return SettledStrategy(name="auto")
    problems = {strategy: found or unfit_for_auto(task, strategy) for strategy, found in problems.items()}
    asked = _Asked(
        task=task, machine=machine, num_ranks=num_ranks, config=config, layout=layout, specs=specs, rows=rows
    )
    choice = choose_strategy(
        [
            asked.by_placement(host_bytes),
            *(asked.of_group(strategy, problem=problem) for strategy, problem in problems.items()),
        ]
    )
    if choice is None:
        # the placement's own error says what would help
        return SettledStrategy(name="auto")
    name = choice.strategy if choice.strategy in GROUP_STRATEGIES else "auto"
    return SettledStrategy(name=name, note=f"strategy: auto is {choice.strategy}; {choice.why}")


def strategy_work(
    machine: Machine,
    *,
    config: DecoderConfig,
    layout: AdapterLayout,
    specs: Sequence[TrialSpec],
    rows: TokenisedRows,
) -> StrategyWork:
    """Return one step of all of ``specs``, as strategies are compared by it.

    Args:
        layout: The adapted linears of the whole model.
    """
    num_examples = sum(spec.batch_size for spec in specs)
    divided, whole = _entries_of_shards(layout)
    counts, dtype = count_model(config), getattr(torch, machine.dtype)
    weights = weight_bytes(config, dtype=dtype, weight_format=machine.quantization)
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


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A task and the GPUs it asks for."""

    task: TaskFile
    machine: Machine
    num_ranks: int
    config: DecoderConfig
    layout: AdapterLayout
    specs: Sequence[TrialSpec]
    rows: TokenisedRows

    @property
    def work(self) -> StrategyWork:
        return strategy_work(self.machine, config=self.config, layout=self.layout, specs=self.specs, rows=self.rows)

    def seconds(self, strategy: str, *, divided_layers: int = 0) -> float:
        hardware = hardware_of(self.machine)
        return predict_seconds(strategy, self.work, hardware, num_gpus=self.num_ranks, divided_layers=divided_layers)

    def by_placement(self, host_bytes: int | None) -> StrategyOption:
        """Return replicas, or adapter parallelism where the model does not fit on each GPU."""
        try:
            placement = choose_placement(
                self.task,
                self.machine,
                num_ranks=self.num_ranks,
                config=self.config,
                layout=self.layout,
                specs=self.specs,
                rows=self.rows,
                host_bytes=host_bytes,
            )
        except InputError as error:
            return StrategyOption(strategy="replicas", seconds=0.0, device_bytes=0, problem=error.problems[0].found)
        weights = placement.weights
        strategy = "adapter_parallel" if weights.are_divided else "replicas"
        seconds = self.seconds(strategy, divided_layers=len(weights.layers) * weights.are_divided)
        return StrategyOption(
            strategy=strategy,
            # layers that come from the host pass its link once forward and once backward
            seconds=max(seconds, placement.seconds_per_pass),
            device_bytes=placement.device_bytes,
        )

    def of_group(self, strategy: str, *, problem: str | None) -> StrategyOption:
        """Return a strategy whose ranks hold the model together, if it fits."""
        task, machine = self.task, self.machine
        if problem is not None:
            return StrategyOption(strategy=strategy, seconds=0.0, device_bytes=0, problem=problem)
        plan = choose_group(
            task,
            machine,
            strategy=strategy,
            num_ranks=self.num_ranks,
            config=self.config,
            layout=self.layout,
            specs=self.specs,
        )
        held = group_memory(plan, machine, config=self.config, layout=self.layout)
        row_bytes = rank_row_bytes(
            held.layout, has_compute_copy=machine.dtype == "bfloat16", optimizer=task_optimizer(task)
        )
        passes = held.needs.recomputed_bytes or held.needs.pass_bytes
        needed = (
            held.weight_bytes
            + aligned_rank(max(spec.adapter.num_rows for spec in self.specs)) * row_bytes
            + passes(int(self.rows.group_lengths(self.specs[0].objective.group_size).max()))
        )
        room = machine.memory_bytes if task.memory.limit is None else min(machine.memory_bytes, task.memory.limit)
        if needed > room * (1 - task.memory.margin):
            problem = f"takes {format_bytes(int(needed))} on each GPU"
        return StrategyOption(
            strategy=strategy, seconds=self.seconds(strategy), device_bytes=held.weight_bytes, problem=problem
        )
