"""What a task will take, before it runs: GPUs, seconds and memory, each with where the figure comes from.

Seconds are the worst case: every trial trains to its end, evaluations included, and the process starts once. Early exit
only makes a task shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes
from cohort.engine.machine import Machine
from cohort.engine.sizing import LOSS_HEAD_BYTES, Sizes, SizeWish, choose_sizes, rank_row_bytes
from cohort.engine.task_file_model import TaskFile
from cohort.engine.task_inputs import TaskInputs, read_inputs
from cohort.engine.trial_planning import PlannedTrial, plan_evaluation
from cohort.engine.trial_proposals import TrialProposals
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.counts import activation_bytes_per_token, count_model
from cohort.scheduling.admission import Request
from cohort.scheduling.analytic_cost import ModelWork, analytic_interconnect, analytic_step_cost
from cohort.scheduling.cost_model import CostSource, StepCost, TrialWork, derive_cost
from cohort.scheduling.hardware import Hardware, known_gpu
from cohort.scheduling.placement_records import TaskOption, TaskRequest
from cohort.scheduling.task_time import EvaluationWork, WaitingTrial, evaluation_seconds, training_seconds

__all__ = ["OptionEstimate", "TaskEstimate", "estimate_task", "hardware_of"]

# float32 products of one core of a server, as packed training of small models reaches them
CPU_FLOPS_PER_THREAD = 4e10
CPU_BYTES_PER_SECOND = 1e10
# starting Python with torch, and reading weights from a local disk
START_SECONDS = 6.0
GPU_START_SECONDS = 15.0
READ_BYTES_PER_SECOND = 1.5e9


@dataclass(frozen=True, kw_only=True)
class OptionEstimate:
    """One way to run a task.

    Attributes:
        num_gpus: Devices it holds (CPU workers count as one).
        seconds: Worst case from its start to its end.
        step_source: Where the seconds of a step come from.
        memory_bytes: On each device at most: base model's share, adapters' states, one pass.
    """

    num_gpus: int
    seconds: float
    step_source: CostSource
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class TaskEstimate:
    """What a task will take.

    Attributes:
        options: Ways to run it, by number of GPUs.
        num_trials: Configurations it tries.
        training_seconds, evaluation_seconds, start_seconds: Parts of the first option's seconds.
        trials: All its trials as the packing planner sees them.
        priority: Of the task file.
    """

    options: tuple[OptionEstimate, ...]
    num_trials: int
    training_seconds: float
    evaluation_seconds: float
    start_seconds: float
    trials: tuple[TrialWork, ...]
    priority: int

    @property
    def num_gpus(self) -> int:
        """GPUs of the first option."""
        return self.options[0].num_gpus

    @property
    def seconds(self) -> float:
        """Worst case of the first option."""
        return self.options[0].seconds

    def request(self, task_id: str, *, arrival_seconds: float = 0.0) -> TaskRequest:
        """Return the task as the placement planner sees it."""
        return TaskRequest(
            task_id=task_id,
            options=tuple(TaskOption(num_gpus=o.num_gpus, seconds=o.seconds) for o in self.options),
            arrival_seconds=arrival_seconds,
            priority=self.priority,
        )


def hardware_of(machine: Machine) -> Hardware:
    """Return what is known of the device that a task would run on here."""
    if machine.device.type == "cuda":
        total = float(torch.cuda.get_device_properties(machine.device).total_memory)
        known = known_gpu(machine.device_name)
        if known is not None:
            return replace(known, memory_bytes=total)
        # a GPU that nobody has described: a middling one, until a step was measured
        return Hardware(
            name=machine.device_name, memory_bytes=total, flops_per_second=1e14, bytes_per_second=8e11,
            link_bytes_per_second=3.2e10,
        )  # fmt: skip
    return Hardware(
        name=f"{machine.device_name}, {machine.threads} thread{'' if machine.threads == 1 else 's'}",
        memory_bytes=machine.memory_bytes,
        flops_per_second=CPU_FLOPS_PER_THREAD * machine.threads,
        bytes_per_second=CPU_BYTES_PER_SECOND,
        is_gpu=False,
    )


def estimate_task(
    task: TaskFile, hardware: Hardware, *, inputs: TaskInputs | None = None, most_gpus: int = 1
) -> TaskEstimate:
    """Return what ``task`` will take on ``hardware``.

    Args:
        task: A task that is valid in itself.
        hardware: One device of those it may run on.
        inputs: What the task names, where it was read already.
        most_gpus: Largest number of GPUs one task may be given; powers of two up to it become options.

    Raises:
        InputError: something is wrong with what the task names, or it fits no allowed number of GPUs.
    """
    _refuse_cpu_task(task, hardware)
    found = inputs or read_inputs(task)
    sketch = _Sketch(task, found, hardware)
    degrees = [1 << power for power in range(max(1, most_gpus).bit_length()) if 1 << power <= max(1, most_gpus)]
    sized: list[tuple[int, Sizes]] = []
    refusal: InputError | None = None
    for degree in degrees:
        try:
            sized.append((degree, sketch.sizes(degree)))
        except InputError as error:
            refusal = refusal or error
    if not sized:
        assert refusal is not None, "every degree was refused for a reason"
        raise refusal
    options = tuple(sketch.option(degree, sizes) for degree, sizes in sized)
    degree, sizes = sized[0]
    return TaskEstimate(
        options=options,
        num_trials=len(sketch.trials),
        training_seconds=sketch.training_seconds(degree, sizes),
        evaluation_seconds=sketch.evaluation_seconds(degree, sizes),
        start_seconds=sketch.start_seconds,
        trials=tuple(sketch.works.values()),
        priority=task.priority,
    )


def _refuse_cpu_task(task: TaskFile, hardware: Hardware) -> None:
    if task.num_gpus == 0 and hardware.is_gpu:
        raise InputError(
            Problem(
                where=task.where("num_gpus"),
                found="0: the task asks for the CPU",
                allowed=f"auto | 1, for a plan on {hardware.name}",
                mend="Write num_gpus: auto.",
            )
        )


class _Sketch:
    """A task's trials and sizes on one kind of hardware, without its weights."""

    def __init__(self, task: TaskFile, inputs: TaskInputs, hardware: Hardware) -> None:
        self.task, self.inputs, self.hardware = task, inputs, hardware
        self.bytes_per_value = 2 if hardware.is_gpu else 4
        shapes = linear_shapes(inputs.config)
        self.layout = AdapterLayout({name: shapes[name] for name in inputs.target_modules})
        self.counts = count_model(inputs.config)
        self.weight_bytes = float(self.counts.weight_bytes(self.bytes_per_value))
        train = inputs.data.train
        self.proposals = TrialProposals(task, num_rows=len(train), num_tokens=int(train.offsets[-1]))
        self.trials = self._all_trials()
        self.mean_square = float((train.lengths.astype(float) ** 2).mean())
        self.works = {trial_id: self._work(trial) for trial_id, trial in enumerate(self.trials)}
        self.model_work = self._model_work()
        self.cost = analytic_step_cost(self.model_work, hardware)

    def _all_trials(self) -> list[PlannedTrial]:
        """Return all trials; those that a sampler will only propose later are like the first ones, in turn."""
        first = self.proposals.first
        return [first[index % len(first)] for index in range(max(self.inputs.num_trials, len(first)))]

    def _work(self, trial: PlannedTrial) -> TrialWork:
        spec = trial.spec
        return TrialWork(
            r=spec.adapter.r,
            num_tokens=trial.planned_tokens / spec.num_steps,
            num_steps=spec.num_steps,
            sum_squares=spec.batch_size * self.mean_square,
            num_sequences=spec.batch_size,
        )

    def _model_work(self) -> ModelWork:
        counts, train = self.counts, self.inputs.data.train
        trained_share = float(train.trained_T.mean())
        return ModelWork(
            flops_per_token=2 * counts.linear_flops_per_token + 3 * trained_share * counts.head_flops_per_token,
            # a causal sequence sees half of its square, and attention's backward costs twice its forward
            flops_per_square=1.5 * counts.attention_flops_per_pair,
            weight_bytes=self.weight_bytes,
            rank_width=self.layout.width,
            num_layers=self.inputs.config.num_layers,
            hidden_size=self.inputs.config.hidden_size,
            bytes_per_value=self.bytes_per_value,
        )

    def sizes(self, degree: int) -> Sizes:
        """Return sizes beside a base model that is spread over ``degree`` GPUs.

        Raises:
            InputError: it does not fit.
        """
        share = math.ceil(self.weight_bytes / degree)
        free = self.hardware.memory_bytes - share
        if free <= 0 or (self.hardware.is_gpu and free <= LOSS_HEAD_BYTES):
            raise InputError(
                Problem(
                    where=self.task.where("model_name_or_path"),
                    found=f"{self.task.model_name_or_path}, whose weights take {format_bytes(self.weight_bytes)}",
                    allowed=f"what fits in {format_bytes(self.hardware.memory_bytes)} of {self.hardware.name}"
                    + (f" on {degree} GPUs" if degree > 1 else ""),
                    mend="Choose a smaller base model, or hardware with more memory.",
                )
            )
        machine = Machine(
            device=torch.device("cuda" if self.hardware.is_gpu else "cpu"),
            device_name=self.hardware.name,
            dtype="bfloat16" if self.hardware.is_gpu else "float32",
            threads=1,
            memory_bytes=int(free),
        )
        try:
            return choose_sizes(
                self.proposals.largest(),
                layout=self.layout,
                machine=machine,
                longest_row=int(self.inputs.data.train.lengths.max()),
                wish=SizeWish(),
                activation_bytes=self.activation_bytes,
            )
        except InputError as error:
            raise InputError([self._placed(problem) for problem in error.problems]) from None

    def _placed(self, problem: Problem) -> Problem:
        return replace(
            problem,
            where=self.task.where(problem.where),
            allowed=f"{problem.allowed} on {self.hardware.name}, beside the base model",
        )

    @property
    def activation_bytes(self) -> int:
        """Bytes that one token of a training pass keeps."""
        return activation_bytes_per_token(self.inputs.config, bytes_per_value=self.bytes_per_value)

    def step_cost(self, degree: int) -> StepCost:
        """Return a step's coefficients on ``degree`` GPUs."""
        interconnect = analytic_interconnect(self.model_work, self.hardware)
        return derive_cost(self.cost, num_gpus=degree, interconnect=interconnect)

    def training_seconds(self, degree: int, sizes: Sizes) -> float:
        """Return the seconds of all trials' training."""
        lengths = self.inputs.data.train.lengths
        waiting = [
            WaitingTrial(
                request=Request(
                    trial_id=trial_id,
                    r=aligned_rank(trial.spec.adapter.r),
                    batch_size=trial.spec.batch_size,
                    mean_length=float(lengths.mean()),
                ),
                work=self.works[trial_id],
            )
            for trial_id, trial in enumerate(self.trials)
        ]
        return training_seconds(waiting, capacity=sizes.capacity, cost=self.step_cost(degree))

    def evaluation_seconds(self, degree: int, sizes: Sizes) -> float:
        """Return the seconds of all trials' evaluations, generation included."""
        validation = self.inputs.data.validation
        plan = plan_evaluation(self.task, self.proposals.first, validation=validation)
        tokens = plan.num_rows * float(validation.lengths.mean())
        evaluations = {
            trial_id: EvaluationWork(
                num_evaluations=len(trial.candidate.evaluation_steps),
                num_tokens=tokens,
                num_sequences=plan.num_rows,
            )
            for trial_id, trial in enumerate(self.trials)
        }
        cost = self.step_cost(degree)
        budget = sizes.executor.evaluation_token_budget
        seconds = evaluation_seconds(evaluations, works=self.works, cost=cost, token_budget=budget)
        if self.task.evaluation.metric != "loss":
            # each new token of a batch of rows is a forward pass of one token a row
            each = 0.5 * cost.step_seconds([TrialWork(r=1, num_tokens=plan.num_rows, num_sequences=plan.num_rows)])
            num = sum(evaluation.num_evaluations for evaluation in evaluations.values())
            seconds += num * self.task.evaluation.max_new_tokens * each
        return seconds

    @property
    def start_seconds(self) -> float:
        """Seconds from the process's start to the first step."""
        start = GPU_START_SECONDS if self.hardware.is_gpu else START_SECONDS
        return start + self.weight_bytes / READ_BYTES_PER_SECOND

    def option(self, degree: int, sizes: Sizes) -> OptionEstimate:
        """Return the estimate for ``degree`` GPUs."""
        row_bytes = rank_row_bytes(self.layout, has_compute_copy=self.hardware.is_gpu)
        memory = self.weight_bytes / degree + sizes.executor.num_rank_rows * row_bytes
        memory += self.activation_bytes * sizes.executor.token_budget + (LOSS_HEAD_BYTES if self.hardware.is_gpu else 0)
        seconds = self.training_seconds(degree, sizes) + self.evaluation_seconds(degree, sizes) + self.start_seconds
        return OptionEstimate(num_gpus=degree, seconds=seconds, step_source=CostSource.ANALYTIC, memory_bytes=memory)
