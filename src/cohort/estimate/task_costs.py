"""A task on one kind of hardware, without its weights: its trials, sizes that fit, and seconds from costs.

Costs are analytic until steps of such tasks were measured (:class:`~cohort.machine.measurements.CostKey` says
which tasks are alike); then they are fitted to the measured steps, with the analytic costs as a prior.
"""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import replace

from cohort.adapters.bank import aligned_rank
from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.units import format_bytes
from cohort.estimate.device_weights import DeviceWeights
from cohort.estimate.likely_strategy import LikelyStrategy
from cohort.estimate.measuring_time import MeasuringTime
from cohort.estimate.planned_machine import planned_machine
from cohort.estimate.time_parts import (
    FINISH_SECONDS,
    GPU_SET_UP_SECONDS,
    READ_BYTES_PER_SECOND,
    START_SECONDS,
    TimeParts,
)
from cohort.machine.machine import Machine
from cohort.machine.measurements import MeasuredCosts
from cohort.memory.host_streaming import choose_streamed_layers
from cohort.memory.limit import (
    estimated_inputs,
    limit_problem,
    require_room_for_an_adapter,
    sizes_within,
    smallest_memory,
    weight_bytes,
)
from cohort.memory.pass_estimates import LOSS_HEAD_BYTES
from cohort.memory.sizes import (
    GRAPH_TOKENS,
    Sizes,
    choose_sizes,
    rank_row_bytes,
    task_optimizer,
)
from cohort.models.counts import activation_bytes_per_token, count_model, recomputed_bytes_per_token
from cohort.prepare.evaluations import plan_evaluation
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.objectives import task_objective
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.trials import PlannedTrial
from cohort.scheduling.admission import Request
from cohort.scheduling.cost.analytic import ModelWork, analytic_interconnect, analytic_step_cost
from cohort.scheduling.cost.fit import fit_step_cost
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.model import CostSource, LaunchRegime, StepCost, TrialWork, derive_cost
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.cost.task_time import WaitingTrial, training_time
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile

__all__ = ["TaskCosts"]

# from this many measured packs on the analytic cost no longer matters
ENOUGH_PACKS = 8


class TaskCosts:
    """One task on one kind of hardware.

    Attributes:
        tight_on: Numbers of GPUs on which :meth:`sizes` found the task's limit to be below what is estimated.
    """

    def __init__(self, task: TaskFile, inputs: TaskInputs, hardware: Hardware, measured: MeasuredCosts) -> None:
        """List the trials and derive analytic costs.

        Raises:
            InputError: the search space cannot be listed or sampled.
        """
        self.task, self.inputs, self.hardware = task, inputs, hardware
        self.tight_on: set[int] = set()
        self.bytes_per_value = 2 if hardware.is_gpu else 4
        self.layout = inputs.layout
        self.counts = count_model(inputs.config)
        whole = self._machine(int(hardware.memory_bytes))
        self.weight_bytes = float(weight_bytes(inputs.config, whole))
        train = inputs.data.train
        self.proposals = TrialProposals(task, train)
        self._evaluation = plan_evaluation(task, self.proposals.first, validation=inputs.data.validation)
        self.proposals.evaluate_at(self._evaluation.times)
        self.trials = self._all_trials()
        self.mean_square = float((train.lengths.astype(float) ** 2).mean())
        self.works = {trial_id: self._work(trial) for trial_id, trial in enumerate(self.trials)}
        self.model_work = self._model_work()
        analytic = analytic_step_cost(self.model_work, hardware)
        self.measured = measured.alike({work.r for work in self.works.values()}, cost=analytic)

    def _machine(self, memory_bytes: int, *, num_gpus: int = 1) -> Machine:
        return planned_machine(
            self.task, self.hardware, config=self.inputs.config, memory_bytes=memory_bytes, num_gpus=num_gpus
        )

    def _all_trials(self) -> list[PlannedTrial]:
        # the trials that a sampler proposes later are unknown; they count like the first ones, in turn
        first = self.proposals.first
        return [first[index % len(first)] for index in range(max(self.inputs.num_trials, len(first)))]

    def _work(self, trial: PlannedTrial) -> TrialWork:
        spec = trial.spec
        return TrialWork(
            r=aligned_rank(spec.adapter.num_rows),
            num_tokens=trial.planned_tokens / spec.num_steps,
            num_steps=spec.num_steps,
            sum_squares=spec.batch_size * self.mean_square,
            num_sequences=spec.batch_size,
        )

    def _model_work(self) -> ModelWork:
        counts, train = self.counts, self.inputs.data.train
        # the loss head computes only tokens that are trained on
        trained_share = float(train.trained_T.mean())
        return ModelWork(
            flops_per_token=(2 + self._recomputed) * counts.linear_flops_per_token
            + 3 * trained_share * counts.head_flops_per_token,
            # a causal sequence sees half of its square, and attention's backward costs twice its forward
            flops_per_square=(1.5 + 0.5 * self._recomputed) * counts.attention_flops_per_pair,
            weight_bytes=self.weight_bytes,
            rank_width=self.layout.width,
            num_linears=len(self.layout.linears),
            num_layers=self.inputs.config.num_layers,
            hidden_size=self.inputs.config.hidden_size,
            bytes_per_value=self.bytes_per_value,
        )

    @property
    def _recomputed(self) -> int:
        """Additional forward passes of the layers in a training pass."""
        return int(self.task.memory.gradient_checkpointing == GradientCheckpointing.ALWAYS.value)

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
        machine = self._machine(int(free), num_gpus=num_ranks)
        inputs = estimated_inputs(
            self.task,
            machine,
            config=self.inputs.config,
            layout=self.layout,
            specs=self.proposals.largest(),
            rows=self.inputs.data.train,
        )
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
            raise InputError([replace(p, allowed=p.allowed + next_to) for p in error.problems]) from None

    @functools.cached_property
    def strategy(self) -> LikelyStrategy:
        """How several devices would share the task."""
        machine = self._machine(int(self.hardware.memory_bytes))
        return LikelyStrategy(self.task, machine, self.inputs, self.proposals, self.weights)

    @functools.cached_property
    def weights(self) -> DeviceWeights:
        """What one of several devices holds of the base model."""
        machine = self._machine(int(self.hardware.memory_bytes))
        streamed = choose_streamed_layers(
            self.task,
            machine,
            config=self.inputs.config,
            layout=self.layout,
            specs=self.proposals.largest(),
            rows=self.inputs.data.train,
        )
        return DeviceWeights(
            weight_bytes=self.weight_bytes, streamed=streamed, hardware=self.hardware, wanted=self.task.strategy
        )

    @property
    def device_bytes(self) -> float:
        """The device's memory, or the task's limit where that is lower."""
        limit = self.task.memory.limit
        return self.hardware.memory_bytes if limit is None else min(float(limit), self.hardware.memory_bytes)

    def _too_large(self, weights: int) -> Problem:
        return Problem(
            where=self.task.where("model_name_or_path"),
            found=f"{self.task.model_name_or_path}, whose weights take {format_bytes(weights)}",
            allowed=f"what fits in {format_bytes(self.hardware.memory_bytes)} of {self.hardware.name}",
            hint="Choose a smaller base model, or hardware with more memory.",
        )

    @property
    def activation_bytes(self) -> int:
        return activation_bytes_per_token(self.inputs.config, bytes_per_value=self.bytes_per_value)

    @property
    def recomputed_bytes(self) -> int:
        return recomputed_bytes_per_token(self.inputs.config, bytes_per_value=self.bytes_per_value)

    def memory_bytes(self, num_gpus: int, sizes: Sizes) -> float:
        """Return what each device holds at most: its share of the base model, the bank, one pass and the loss head."""
        row_bytes = rank_row_bytes(
            self.layout, has_compute_copy=self.hardware.is_gpu, optimizer=task_optimizer(self.task)
        )
        memory = self.strategy.device_bytes(num_gpus) + sizes.executor.num_rank_rows * row_bytes
        tokens, kept = sizes.executor.token_budget, sizes.executor.keep_tokens
        memory += self.activation_bytes * tokens if kept is None else max(
            self.activation_bytes * min(kept, tokens), self.recomputed_bytes * tokens
        )  # fmt: skip
        return memory + (LOSS_HEAD_BYTES if self.hardware.is_gpu else 0)

    def step_cost(self, num_gpus: int, *, tokens_per_pass: float | None) -> tuple[StepCost, CostSource]:
        """Return a step's coefficients and where they come from.

        Args:
            num_gpus: Above one they are derived from those of one, and analytic.
            tokens_per_pass: Where launches of the host may take longer than the work; None: never, which is convex.
        """
        launched = None
        if self.hardware.is_gpu and tokens_per_pass is not None:
            launched = LaunchRegime(from_tokens=GRAPH_TOKENS, tokens_per_pass=tokens_per_pass)
        cost, source = analytic_step_cost(self.model_work, self.hardware, launched=launched), CostSource.ANALYTIC
        # runs measure only steps that kept their activations
        samples = () if self._recomputed else self.measured.samples
        if samples:
            cost = fit_step_cost(samples, held_out=(), prior=cost, launched=launched).cost
            source = CostSource.MEASURED if len(set(samples)) >= ENOUGH_PACKS else CostSource.SCALED
        if num_gpus == 1:
            return cost, source
        interconnect = analytic_interconnect(self.model_work, self.hardware)
        plain = replace(cost, launches=None)
        return derive_cost(plain, num_gpus=num_gpus, interconnect=interconnect), CostSource.ANALYTIC

    def waiting(self) -> tuple[WaitingTrial, ...]:
        """Return the trials as they are at the start: all wait for a slot."""
        mean_length = float(self.inputs.data.train.lengths.mean())
        return tuple(
            WaitingTrial(
                request=Request(
                    trial_id=trial_id,
                    r=aligned_rank(trial.spec.adapter.num_rows),
                    batch_size=trial.spec.batch_size,
                    mean_length=mean_length,
                    priority=self.task.priority,
                ),
                work=self.works[trial_id],
            )
            for trial_id, trial in enumerate(self.trials)
        )

    def shared_work(self, sizes: Sizes, time: TimeParts) -> SharedWork | None:
        """Return what the task would do in an executor of one device that it shares; None where it can share none.

        A CPU computes sample by sample, so there a pass is never too small. A task whose answers are compared with a
        reference model computes that on the device before it trains, and layers that are streamed take a time of their
        own for each pass.
        """
        task = self.task
        if not self.hardware.is_gpu or task_objective(task).needs_reference or self.weights.streamed.count:
            return None
        if task.num_gpus not in ("auto", 1):
            return None
        alike = {
            "model": str(self.inputs.model_directory.resolve()),
            "linears": self.inputs.target_modules,
            "memory": task.memory.model_dump(mode="json"),
            "quantization": task.quantization,
            "numerics": self._machine(0).numerics,
            "optimizers": possible_optimizers(task),
            "row_bytes": rank_row_bytes(self.layout, has_compute_copy=True, optimizer=task_optimizer(task)),
        }
        cost, _ = self.step_cost(1, tokens_per_pass=sizes.executor.token_budget)
        return SharedWork(
            key=json.dumps(alike, sort_keys=True),
            trials=self.waiting(),
            capacity=sizes.capacity,
            cost=cost,
            other_seconds=time.evaluation + time.comparison + time.rest,
            # the process is there already
            start_seconds=max(time.start - START_SECONDS, 0.0),
        )

    def time(self, num_gpus: int, sizes: Sizes) -> TimeParts:
        """Return the seconds of the task on ``num_gpus`` devices that divide its trials, each with ``sizes``."""
        # a step of one executor costs the same whatever the others do: no number passes between them in a step
        cost, source = self.step_cost(1, tokens_per_pass=sizes.executor.token_budget)
        training = training_time(self.waiting(), capacity=sizes.capacity, cost=cost)
        # of one device's seconds, where several work on each step together
        together = self.strategy.holds_together(num_gpus)
        share = 1 / self.strategy.speed_up(num_gpus) if together else 1.0
        runs = self.measured.runs
        # medians everywhere: the first run on a machine compiles kernels; of two runs, the lower
        others = [run.other_seconds / run.steps for run in runs if run.steps]
        other = statistics.median_low(others) * training.num_steps if others else 0.0
        finish = statistics.median_low(run.finish_seconds for run in runs) if runs else FINISH_SECONDS
        measuring = MeasuringTime(
            task=self.task,
            works=self.works,
            cost=cost,
            token_budget=sizes.executor.evaluation_token_budget,
            rate=self.measured.seconds_per_evaluated_token,
        )
        data, plan = self.inputs.data, self._evaluation
        counts = {trial_id: len(trial.candidate.evaluation_steps) for trial_id, trial in enumerate(self.trials)}
        searched = measuring.searched_tokens(
            data,
            plan,
            trained=sum(trial.planned_tokens for trial in self.trials),
            num_evaluations=sum(counts.values()),
        )
        tokens = sum(work.num_tokens * work.num_steps for work in self.works.values())
        passes = max(training.num_steps, tokens / (num_gpus * sizes.executor.token_budget))
        copies = 0.0 if together else passes * self.weights.copy_seconds(num_gpus)
        return TimeParts(
            # copies of layers run while others compute
            training=max(share * training.seconds, copies),
            # each executor evaluates its own trials
            evaluation=measuring.evaluations(data, plan, counts=counts)
            * (share if together else 1 / min(num_gpus, len(self.trials))),
            comparison=measuring.comparison(data, plan, searched_tokens=searched),
            start=self._start_seconds(),
            rest=other + finish,
            source=source,
        )

    def _start_seconds(self) -> float:
        runs = self.measured.runs
        if runs:
            return START_SECONDS + statistics.median_low(run.start_seconds for run in runs)
        # no run has measured such a start: the base model's file is then read at a local disk's speed
        set_up = GPU_SET_UP_SECONDS if self.hardware.is_gpu else 0.0
        return START_SECONDS + set_up + self.weight_bytes / READ_BYTES_PER_SECOND
