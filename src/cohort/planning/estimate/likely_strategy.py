"""How several GPUs would share one task, by the rules of a run, on hardware that need not be here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cohort.core.errors import Problem
from cohort.memory.demand import Demand
from cohort.memory.rank_groups import GROUP_STRATEGIES, group_problems
from cohort.memory.strategy_options import strategy_work, unfit_for_auto
from cohort.planning.estimate.device_weights import DeviceWeights
from cohort.scheduling.strategy_choice import StrategyOption, choose_strategy, predict_seconds

__all__ = ["LikelyStrategy"]


@dataclass(frozen=True, kw_only=True)
class LikelyStrategy:
    """The strategies of one task.

    Attributes:
        demand: What it wants of one of the devices.
        weights: What each of them holds where every rank trains trials of its own.
    """

    demand: Demand
    weights: DeviceWeights

    def name(self, num_gpus: int) -> str:
        """Return the strategy that a run on ``num_gpus`` would have."""
        plain = self.weights.strategy(num_gpus)
        if num_gpus == 1 or not self.weights.hardware.is_gpu:
            return plain
        if self.demand.task.strategy != "auto":
            return self.demand.task.strategy if self.demand.task.strategy in GROUP_STRATEGIES else plain
        options = [StrategyOption(strategy=plain, seconds=self._seconds(plain, num_gpus), device_bytes=0)]
        for strategy in GROUP_STRATEGIES:
            found = self._problem(strategy, num_gpus) or unfit_for_auto(self.demand.task, strategy)
            seconds = 0.0 if found else self._seconds(strategy, num_gpus)
            options.append(StrategyOption(strategy=strategy, seconds=seconds, device_bytes=0, problem=found))
        choice = choose_strategy(options)
        return plain if choice is None else choice.strategy

    def holds_together(self, num_gpus: int) -> bool:
        """Return whether the ranks hold one model and every trial together."""
        return self.name(num_gpus) in GROUP_STRATEGIES

    def device_bytes(self, num_gpus: int) -> int:
        """Return the bytes of the base model on each device."""
        if self.holds_together(num_gpus):
            return -(-int(self.weights.weight_bytes) // num_gpus)
        return self.weights.device_bytes(num_gpus)

    def speed_up(self, num_gpus: int) -> float:
        """Return how much faster than one GPU ranks that hold one model together make a step, by prediction."""
        return self._seconds("replicas", 1) / self._seconds(self.name(num_gpus), num_gpus)

    def problems(self, num_gpus: int) -> list[Problem]:
        """Return why the strategy that the task asks for does not work on ``num_gpus``."""
        if num_gpus == 1 or self.demand.task.strategy not in GROUP_STRATEGIES:
            return []
        return self._all_problems(self.demand.task.strategy, num_gpus)

    def _seconds(self, strategy: str, num_gpus: int) -> float:
        work = strategy_work(self.demand)
        divided = self.weights.divided_layers(num_gpus) if strategy == "adapter_parallel" else 0
        return predict_seconds(strategy, work, self.weights.hardware, num_gpus=num_gpus, divided_layers=divided)

    def _problem(self, strategy: str, num_gpus: int) -> str | None:
        if problems := self._all_problems(strategy, num_gpus):
            return problems[0].found
        fits = self.weights.weight_bytes / num_gpus < self.weights.hardware.memory_bytes
        return None if fits else "does not fit"

    def _all_problems(self, strategy: str, num_gpus: int) -> list[Problem]:
        return list(group_problems(replace(self.demand, num_ranks=num_gpus), strategy))
