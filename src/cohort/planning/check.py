"""Checks everything a task needs and trains nothing: task, model files, target modules, tokenizer, every row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cohort.core.errors import InputError
from cohort.core.units import counted, format_duration
from cohort.data.inspection import RenderedExample, render_examples
from cohort.data.report import DataReport
from cohort.machine.machine import Machine
from cohort.memory.host_streaming import available_host_bytes, least_weight_bytes
from cohort.memory.model_place import choose_model_place
from cohort.memory.smallest_memory import estimated_inputs, require_room_for_an_adapter
from cohort.models.counts import count_model
from cohort.models.finite_weights import checked_weights
from cohort.planning.estimate.estimate import estimate_task, hardware_of
from cohort.planning.estimate.time_parts import TimeParts
from cohort.prepare.adapters.block_checks import block_notes
from cohort.prepare.adapters.start_checks import start_notes
from cohort.prepare.adapters.vector_checks import vector_notes
from cohort.prepare.base_model.numerics import numerics_note
from cohort.prepare.base_model.quantization import quantization_note
from cohort.prepare.evaluations import evaluation_note, plan_evaluation
from cohort.prepare.inputs import TaskInputs, read_inputs_and_machine
from cohort.prepare.objectives import task_objective
from cohort.prepare.proposals import TrialProposals, num_first_trials
from cohort.prepare.rows.data_notes import split_notes
from cohort.prepare.warnings import task_warnings
from cohort.scheduling.cost.model import CostSource
from cohort.tasks.loading import TaskFile
from cohort.tuning.evaluation_times import EvaluationPlan
from cohort.tuning.parameters import MOST_POINTS, Conditional
from cohort.tuning.samplers import sampler_kind

__all__ = ["CheckReport", "Outlook", "check_task"]

_NUM_EXAMPLES = 3
# after a predicted time: where it comes from
_SOURCES = {
    CostSource.ANALYTIC: "a guess: no step of such a task was measured here",
    CostSource.SCALED: "a guess from few measured steps",
    CostSource.MEASURED: "from steps measured here",
}
_NO_ROOM = "an estimate from above finds no room for the passes; the run measures them"


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What training would take. Pairs are the least and the most of all first trials.

    Attributes:
        steps_per_trial: Optimizer steps.
        tokens_per_trial: Tokens that a trial reads in training, prompts included.
        evaluations_per_trial: How often a trial is evaluated.
        evaluation_rows: Validation rows of one evaluation.
        evaluation_share: Compute of all evaluations over that of all training.
        seconds: Expected from the start to the end, if the exit rule keeps the share of trials that it is set to keep;
            None where an estimate from above finds no room for the passes, which a run measures.
        most_seconds: If every trial trains to its end.
        source: Where the seconds come from, in words.
    """

    steps_per_trial: tuple[int, int]
    tokens_per_trial: tuple[int, int]
    evaluations_per_trial: tuple[int, int]
    evaluation_rows: int
    evaluation_share: float
    seconds: float | None
    most_seconds: float | None
    source: str

    @property
    def time_text(self) -> str:
        """Return ``about 12m 05s (at most 41m 10s with no early exit; from steps measured here)``."""
        if self.seconds is None or self.most_seconds is None:
            return f"unknown ({self.source})"
        most = f"at most {format_duration(self.most_seconds)} with no early exit; "
        return (
            f"about {format_duration(self.seconds)} ({most if self.seconds < self.most_seconds else ''}{self.source})"
        )


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a task would train.

    Attributes:
        architecture: Class name of the base model.
        num_parameters: The base model's.
        target_modules: Full paths of the linears that get an adapter.
        num_trials: Configurations that will be tried.
        device: What it would train on here.
        data: The report about its rows.
        outlook: What training would take.
        examples: The first training rows, decoded from the tokens and masks that training reads.
        weights: How much of the base model's weights was read, all of it finite.
        rewards: What rewards answers, each with its weight, where answers are drawn.
        notes: For the user.
        warnings: What is allowed, but rarely meant.
    """

    architecture: str
    num_parameters: int
    target_modules: tuple[str, ...]
    num_trials: int
    device: str
    data: DataReport
    outlook: Outlook
    examples: tuple[RenderedExample, ...]
    weights: str
    rewards: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def check_task(task: TaskFile, *, max_problems: int | None = None) -> CheckReport:
    """Return what the task would train.

    Args:
        max_problems: Most problems of the data to list; None lists all.

    Raises:
        InputError: every problem of the machine, the model's files, the target modules, the rows and the memory limit.
    """
    inputs, machine = read_inputs_and_machine(task, max_problems=max_problems)
    rows = inputs.data.train
    trials = TrialProposals(task, rows, saved=inputs.saved_modules(task), start=inputs.start)
    weights = checked_weights(inputs.model_directory)
    if weights.problems:
        raise InputError([task.located(problem) for problem in weights.problems])
    # a check measures no pass, so what passes take is estimated from above
    demand = inputs.demand(task, machine, specs=trials.largest())
    place = choose_model_place(demand, host_bytes=available_host_bytes())
    needs = estimated_inputs(replace(demand, layout=place.layout))
    require_room_for_an_adapter(task, needs, base_bytes=place.device_bytes)
    size = task_objective(task).group_size
    examples = render_examples(rows, tokenizer=inputs.tokenizer, count=_NUM_EXAMPLES, group_size=size)
    plan = plan_evaluation(task, trials.first, validation=inputs.data.validation)
    trials.evaluate_at(plan.times)
    evaluation = evaluation_note(plan, task=task, num_available=len(inputs.data.validation) // size)
    notes = (
        *task.notes(),
        *start_notes(inputs.start),
        *_constraint_notes(task),
        *_condition_notes(task),
        *_budget_notes(task),
        *block_notes(trials.first, linears=inputs.layout.linears),
        *vector_notes([trial.spec.adapter for trial in trials.first], linears=inputs.layout.linears),
        *split_notes(inputs.data.report, max_length=task.dataset.max_length),
    )
    return CheckReport(
        architecture=inputs.config.architecture,
        num_parameters=count_model(inputs.config).parameters,
        target_modules=inputs.target_modules,
        num_trials=inputs.num_trials,
        device=f"{machine.device.type} ({machine.device_name})",
        data=inputs.data.report,
        outlook=_outlook(task, inputs, machine, trials=trials, plan=plan),
        examples=tuple(examples),
        weights=weights.text,
        rewards=() if task.rewards is None else tuple(own.shown for own in task.rewards.functions),
        notes=tuple(
            note
            for note in (*notes, *place.notes, numerics_note(machine), quantization_note(machine), evaluation)
            if note is not None
        ),
        warnings=tuple(task_warnings(task, inputs, trials=trials.first, plan=plan)),
    )


def _outlook(
    task: TaskFile, inputs: TaskInputs, machine: Machine, *, trials: TrialProposals, plan: EvaluationPlan
) -> Outlook:
    hardware = hardware_of(machine)
    # a valid task is not refused because its time cannot be told
    time: TimeParts | None = None
    try:
        time = estimate_task(task, hardware, inputs=inputs).options[0].time
    except InputError:
        # the memory limit was checked before; this estimate is from above and may refuse what a run accepts
        if least_weight_bytes(task, inputs.config, machine) >= hardware.memory_bytes:
            raise
    settings = task.early_exit_settings()
    # which other trials end before their last step is unknown before they train: the selection alone is planned
    share = settings.kept_share(inputs.num_trials)
    kept = share + (1 - share) * settings.warmup_fraction
    fixed = 0.0 if time is None else time.start + time.rest
    work = 0.0 if time is None else time.shortened
    return Outlook(
        steps_per_trial=_span(trial.spec.num_steps for trial in trials.first),
        tokens_per_trial=_span(trial.planned_tokens for trial in trials.first),
        evaluations_per_trial=_span(len(trial.candidate.evaluation_steps) for trial in trials.first),
        evaluation_rows=plan.num_rows,
        evaluation_share=plan.cost_fraction,
        seconds=None if time is None else fixed + kept * work,
        most_seconds=None if time is None else fixed + work,
        source=_NO_ROOM if time is None else _SOURCES[time.source],
    )


def _span(counts: Iterable[int]) -> tuple[int, int]:
    found = list(counts)
    return min(found), max(found)


def _constraint_notes(task: TaskFile) -> Iterator[str]:
    space = task.search_space()
    size = space.size_bound()
    # counting is listing, so a huge space is left uncounted
    if space.constraints and size is not None and size <= MOST_POINTS:
        left = sum(1 for _ in space.configurations())
        every = sum(1 for _ in replace(space, constraints=()).configurations())
        yield f"search.constraints leave {left} of {every} configurations"


def _condition_notes(task: TaskFile) -> Iterator[str]:
    for name, parameter in task.search_space().parameters.items():
        if isinstance(parameter, Conditional):
            when = " and ".join(
                f"{other} is {' or '.join(map(_as_in_yaml, values))}" for other, values in parameter.when.items()
            )
            yield f"search.space.{name} is searched when {when}; else {name} is {_as_in_yaml(parameter.otherwise)}"


def _as_in_yaml(value: object) -> str:
    """Return a value as a task file has it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _budget_notes(task: TaskFile) -> Iterator[str]:
    search = task.search
    kind = sampler_kind(search.sampler)
    proposes_later = kind.learns or search.first_trials or search.max_gpu_hours
    # a grid is known from the start: the number of trials says it all
    if kind.takes_whole_space or not proposes_later:
        return
    size = task.search_space().size_bound()
    most = search.trials if size is None else min(search.trials, size)
    first = min(num_first_trials(task) or most, most)
    if first == most and search.max_gpu_hours is None:
        return
    until = "" if search.max_gpu_hours is None else f", none after {search.max_gpu_hours:g} h on the device"
    yield f"{counted(first, 'trial')} at first, then one for each that ends, {most} at most{until}"
