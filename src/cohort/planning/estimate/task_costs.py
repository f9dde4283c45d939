"""A task on one kind of hardware, without its weights: its trials, sizes that fit, and seconds from costs.

Costs are analytic until steps of such tasks were measured (:class:`~cohort.machine.measurements.CostKey` says
which tasks are alike); then they are fitted to the measured steps, with the analytic costs as a prior.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

from cohort.adapters.bank import aligned_rank
from cohort.core.memory_records import GradientCheckpointing
from cohort.machine.measurements import MeasuredCosts
from cohort.memory.budget import Sizes
from cohort.memory.size_inputs import rank_row_bytes, task_optimizer
from cohort.models.counts import count_model
from cohort.planning.estimate.measuring_time import MeasuringTime
from cohort.planning.estimate.task_memory import TaskMemory
from cohort.planning.estimate.time_parts import (
    FINISH_SECONDS,
    GPU_SET_UP_SECONDS,
    READ_BYTES_PER_SECOND,
    START_SECONDS,
    TimeParts,
)
from cohort.prepare.evaluations import plan_evaluation
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.objectives import task_objective
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.step_cost import model_work
from cohort.prepare.trials import PlannedTrial
from cohort.scheduling.admission import Request
from cohort.scheduling.cost.analytic import ModelWork, analytic_interconnect, analytic_step_cost
from cohort.scheduling.cost.fit import fit_step_cost
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.model import AdapterWork, CostSource, LaunchRegime, StepCost, derive_cost
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.cost.task_time import training_time
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile
from cohort.training.cuda_graphs.recorded_shapes import launching_rows, most_recorded_tokens
from cohort.tuning.finals_plan import free_tokens

__all__ = ["TaskCosts"]

# from this many measured packs on the analytic cost no longer matters
ENOUGH_PACKS = 8


class TaskCosts:
    """One task on one kind of hardware.

    Attributes:
        memory: What it takes of each device, and the sizes that fit there.
    """

    def __init__(self, task: TaskFile, inputs: TaskInputs, hardware: Hardware, measured: MeasuredCosts) -> None:
        """List the trials and derive analytic costs.

        Raises:
            InputError: the search space cannot be listed or sampled.
        """
        self.task, self.inputs, self.hardware = task, inputs, hardware
        self.layout = inputs.layout
        train = inputs.data.train
        self.proposals = TrialProposals(task, train, saved=inputs.saved_modules(task))
        self._evaluation = plan_evaluation(task, self.proposals.first, validation=inputs.data.validation)
        self.proposals.evaluate_at(self._evaluation.times)
        self.trials = self._all_trials()
        self.memory = TaskMemory(task, inputs, hardware, self.proposals)
        self.mean_square = float((train.lengths.astype(float) ** 2).mean())
        self.works = {trial_id: self._work(trial) for trial_id, trial in enumerate(self.trials)}
        self.model_work = self._model_work()
        analytic = analytic_step_cost(self.model_work, hardware)
        self.measured = measured.alike({work.r for work in self.works.values()}, cost=analytic)

    def _all_trials(self) -> list[PlannedTrial]:
        # the trials that a sampler proposes later are unknown; they count like the first ones, in turn
        first = self.proposals.first
        return [first[index % len(first)] for index in range(max(self.inputs.num_trials, len(first)))]

    def _work(self, trial: PlannedTrial) -> AdapterWork:
        spec = trial.spec
        return AdapterWork(
            r=aligned_rank(spec.adapter.num_rows),
            num_tokens=trial.planned_tokens / spec.num_steps,
            num_steps=spec.num_steps,
            sum_squares=spec.batch_size * self.mean_square,
            num_sequences=spec.batch_size,
        )

    def _model_work(self) -> ModelWork:
        return model_work(
            self.inputs,
            weight_bytes=self.memory.weight_bytes,
            bytes_per_value=self.memory.bytes_per_value,
            recomputed=self._recomputed,
        )

    @property
    def _recomputed(self) -> int:
        """Additional forward passes of the layers in a training pass."""
        return int(self.task.memory.gradient_checkpointing == GradientCheckpointing.ALWAYS.value)

    def step_cost(self, num_gpus: int, *, tokens_per_pass: float | None) -> tuple[StepCost, CostSource]:
        """Return a step's coefficients and where they come from.

        Args:
            num_gpus: Above one they are derived from those of one, and analytic.
            tokens_per_pass: Where launches of the host may take longer than the work; None: never, which is convex.
        """
        launched = None
        if self.hardware.is_gpu and tokens_per_pass is not None:
            launching = launching_rows(self.inputs.config)
            most = most_recorded_tokens(self.memory.machine(0).numerics, launching=launching)
            launched = LaunchRegime(from_tokens=most, tokens_per_pass=tokens_per_pass)
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

    def requests(self) -> tuple[Request, ...]:
        """Return what the trials want at the start, when all wait for a slot."""
        mean_length = float(self.inputs.data.train.lengths.mean())
        return tuple(
            Request(
                trial_id=trial_id,
                r=self.works[trial_id].r,
                batch_size=trial.spec.batch_size,
                mean_length=mean_length,
                priority=self.task.priority,
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
        if not self.hardware.is_gpu or task_objective(task).needs_reference or self.memory.weights.streamed.count:
            return None
        if task.num_gpus not in ("auto", 1):
            return None
        alike = {
            "model": str(self.inputs.model_directory.resolve()),
            "linears": self.inputs.target_modules,
            "memory": task.memory.model_dump(mode="json"),
            "quantization": task.quantization,
            "numerics": self.memory.machine(0).numerics,
            "optimizers": possible_optimizers(task),
            "row_bytes": rank_row_bytes(self.layout, has_compute_copy=True, optimizer=task_optimizer(task)),
        }
        cost, _ = self.step_cost(1, tokens_per_pass=sizes.executor.token_budget)
        return SharedWork(
            key=json.dumps(alike, sort_keys=True),
            requests=self.requests(),
            works=self.works,
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
        training = training_time(self.requests(), works=self.works, capacity=sizes.capacity, cost=cost)
        # of one device's seconds, where several work on each step together
        together = self.memory.strategy.holds_together(num_gpus)
        share = 1 / self.memory.strategy.speed_up(num_gpus) if together else 1.0
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
        copies = 0.0 if together else passes * self.memory.weights.copy_seconds(num_gpus)
        return TimeParts(
            # copies of layers run while others compute
            training=max(share * training.seconds, copies),
            # each executor evaluates its own trials
            evaluation=measuring.evaluations(data, plan, counts=counts)
            * (share if together else 1 / min(num_gpus, len(self.trials))),
            comparison=measuring.comparison(data, plan, searched_tokens=searched, free_tokens=self._free_tokens()),
            start=self._start_seconds(),
            rest=other + finish,
            source=source,
        )

    def _free_tokens(self) -> float:
        device_type = "cuda" if self.hardware.is_gpu else "cpu"
        return free_tokens(num_weights=count_model(self.inputs.config).parameters, device_type=device_type)

    def _start_seconds(self) -> float:
        runs = self.measured.runs
        if runs:
            return START_SECONDS + statistics.median_low(run.start_seconds for run in runs)
        # no run has measured such a start: the base model's file is then read at a local disk's speed
        set_up = GPU_SET_UP_SECONDS if self.hardware.is_gpu else 0.0
        return START_SECONDS + set_up + self.memory.weight_bytes / READ_BYTES_PER_SECOND
