"""What a task takes of each device's memory, and the sizes that fit there, without a weight read.

A run measures its passes and chooses its sizes by them; here both follow from counts, so that a plan refuses what a run
would refuse.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes, choose_sizes
from cohort.memory.demand import Demand
from cohort.memory.host_streaming import choose_streamed_layers
from cohort.memory.pass_estimates import LOSS_HEAD_BYTES
from cohort.memory.smallest_memory import (
    estimated_inputs,
    limit_problem,
    require_room_for_an_adapter,
    sizes_within,
    smallest_memory,
    weight_bytes,
)
from cohort.models.counts import activation_bytes_per_token, recomputed_bytes_per_token
from cohort.planning.estimate.device_weights import DeviceWeights
from cohort.planning.estimate.likely_strategy import LikelyStrategy
from cohort.planning.estimate.planned_machine import planned_machine
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.proposals import TrialProposals
from cohort.scheduling.cost.hardware import Hardware
from cohort.tasks.task_file import TaskFile

__all__ = ["TaskMemory"]


class TaskMemory:
    """One task on one kind of device.

    Attributes:
        weight_bytes: What the whole base model takes in the task's format.
        bytes_per_value: Of what is computed.
        tight_on: Numbers of GPUs on which :meth:`sizes` found the task's limit to be below what is estimated.
    """

    def __init__(self, task: TaskFile, inputs: TaskInputs, hardware: Hardware, proposals: TrialProposals) -> None:
        self.task, self.inputs, self.hardware, self._proposals = task, inputs, hardware, proposals
        self.bytes_per_value = 2 if hardware.is_gpu else 4
        self.tight_on: set[int] = set()
        self.weight_bytes = float(weight_bytes(inputs.config, self.machine(int(hardware.memory_bytes))))

    def machine(self, memory_bytes: int, *, num_gpus: int = 1) -> Machine:
        """Return the device with ``memory_bytes`` of free memory."""
        return planned_machine(
            self.task, self.hardware, config=self.inputs.config, memory_bytes=memory_bytes, num_gpus=num_gpus
        )

    def sizes(self, num_gpus: int) -> Sizes:
        """Return the sizes of each of ``num_gpus`` executors, next to what its GPU holds of the base model.

        They are the smallest there are where the task's limit is below what is estimated, but may do once passes are
        measured.

        Raises:
            InputError: it does not fit, or not with the largest rank.
        """
        weights = self.strategy.device_bytes(num_gpus)
        free = self.device_bytes - weights
        limit = self.task.memory.limit
        if problems := self.strategy.problems(num_gpus):
            raise InputError(problems)
        # ranks that hold one model together have one bank for admission
        num_ranks = 1 if self.strategy.holds_together(num_gpus) else num_gpus
        inputs = estimated_inputs(replace(self._demand, machine=self.machine(int(free), num_gpus=num_ranks)))
        if not self.hardware.is_gpu and limit is None:
            # such a run predicts no pass either: its bank takes a share of the free memory
            inputs = replace(inputs, needs=None)
        there_bytes = self.hardware.memory_bytes
        # every pass on a GPU takes the loss head's memory, so with less than that no rank is at fault
        pass_bytes = LOSS_HEAD_BYTES if self.hardware.is_gpu else 0
        if free <= pass_bytes:
            enough = smallest_memory(self.task, inputs, base_bytes=weights, there_bytes=there_bytes)
            known = limit_problem(self.task, base_bytes=weights, pass_bytes=pass_bytes, enough=enough)
            is_limit = limit is not None and limit < there_bytes
            raise InputError(known if known is not None and is_limit else self._too_large(weights))
        try:
            return sizes_within(self.task, inputs, free_bytes=int(free), base_bytes=weights, there_bytes=there_bytes)
        except InputError as error:
            if limit is not None and limit < there_bytes and self.task.memory.profile:
                # a run measures its passes, and may accept what an estimate from above would refuse: one rule for both
                require_room_for_an_adapter(self.task, inputs, base_bytes=weights)
                enough = smallest_memory(self.task, inputs, base_bytes=weights, there_bytes=there_bytes)
                if enough is not None:
                    self.tight_on.add(num_gpus)
                    return choose_sizes(inputs, free_bytes=enough.num_bytes - weights)
            next_to = f", next to the base model on {self.hardware.name}"
            raise error.about([replace(p, allowed=p.allowed + next_to) for p in error.problems]) from None

    def memory_bytes(self, num_gpus: int, sizes: Sizes) -> float:
        """Return what each device holds at most: its share of the base model, the bank, one pass and the loss head."""
        memory = self.strategy.device_bytes(num_gpus) + sizes.executor.num_rank_rows * self._demand.row_bytes
        tokens, kept = sizes.executor.token_budget, sizes.executor.keep_tokens
        memory += self.activation_bytes * tokens if kept is None else max(
            self.activation_bytes * min(kept, tokens), self.recomputed_bytes * tokens
        )  # fmt: skip
        return memory + (LOSS_HEAD_BYTES if self.hardware.is_gpu else 0)

    @functools.cached_property
    def _demand(self) -> Demand:
        """What the task wants of one device, all of whose memory is free."""
        machine = self.machine(int(self.hardware.memory_bytes))
        return self.inputs.demand(self.task, machine, specs=self._proposals.largest())

    @functools.cached_property
    def strategy(self) -> LikelyStrategy:
        """How several devices would share the task."""
        return LikelyStrategy(demand=self._demand, weights=self.weights)

    @functools.cached_property
    def weights(self) -> DeviceWeights:
        """What one of several devices holds of the base model."""
        streamed = choose_streamed_layers(self._demand)
        return DeviceWeights(
            weight_bytes=self.weight_bytes, streamed=streamed, hardware=self.hardware, wanted=self.task.strategy
        )

    @property
    def device_bytes(self) -> float:
        """The device's memory, or the task's limit where that is lower."""
        limit = self.task.memory.limit
        return self.hardware.memory_bytes if limit is None else min(float(limit), self.hardware.memory_bytes)

    @property
    def activation_bytes(self) -> int:
        return activation_bytes_per_token(self.inputs.config, bytes_per_value=self.bytes_per_value)

    @property
    def recomputed_bytes(self) -> int:
        return recomputed_bytes_per_token(self.inputs.config, bytes_per_value=self.bytes_per_value)

    def _too_large(self, weights: int) -> Problem:
        return Problem(
            where=self.task.where("model_name_or_path"),
            found=f"{self.task.model_name_or_path}, whose weights take {format_bytes(weights)}",
            allowed=f"what fits in {format_bytes(self.hardware.memory_bytes)} of {self.hardware.name}",
            hint="Choose a smaller base model, or hardware with more memory.",
        )
