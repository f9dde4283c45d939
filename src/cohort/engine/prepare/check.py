"""Checks everything a task needs and trains nothing: task, model files, target modules, tokenizer, every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cohort.core.units import counted
from cohort.data.inspection import RenderedExample, render_examples
from cohort.data.report import DataReport
from cohort.engine.prepare.data_notes import split_notes
from cohort.engine.prepare.inputs import TaskInputs, read_inputs_and_machine
from cohort.engine.prepare.proposals import TrialProposals, num_first_trials
from cohort.engine.prepare.trials import evaluation_note, plan_evaluation
from cohort.memory.limit import estimated_inputs, require_room_for_an_adapter, weight_bytes
from cohort.models.counts import count_model
from cohort.tasks.loading import TaskFile
from cohort.tuning.parameters import MOST_POINTS, Conditional
from cohort.tuning.samplers import sampler_kind

__all__ = ["CheckReport", "check_task"]

_NUM_EXAMPLES = 3


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
        examples: The first training rows, decoded from the tokens and masks that training reads.
        notes: For the user.
    """

    architecture: str
    num_parameters: int
    target_modules: tuple[str, ...]
    num_trials: int
    device: str
    data: DataReport
    examples: tuple[RenderedExample, ...]
    notes: tuple[str, ...]


def check_task(task: TaskFile, *, max_problems: int | None = None) -> CheckReport:
    """Return what the task would train.

    Args:
        max_problems: Most problems of the data to list; None lists all.

    Raises:
        InputError: every problem of the machine, the model's files, the target modules, the rows and the memory limit.
    """
    inputs, machine = read_inputs_and_machine(task, max_problems=max_problems)
    rows, trials = inputs.data.train, TrialProposals(task, inputs.data.train)
    # a check reads no weight and measures no pass, so what passes take is estimated from above
    needs = estimated_inputs(
        task, machine, config=inputs.config, layout=inputs.layout, specs=trials.largest(), rows=rows
    )
    require_room_for_an_adapter(task, needs, base_bytes=weight_bytes(inputs.config, machine))
    examples = render_examples(rows, tokenizer=inputs.tokenizer, count=_NUM_EXAMPLES)
    notes = (
        *task.notes(),
        *_constraint_notes(task),
        *_condition_notes(task),
        *_budget_notes(task),
        *split_notes(inputs.data.report),
    )
    return CheckReport(
        architecture=inputs.config.architecture,
        num_parameters=count_model(inputs.config).parameters,
        target_modules=inputs.target_modules,
        num_trials=inputs.num_trials,
        device=f"{machine.device.type} ({machine.device_name})",
        data=inputs.data.report,
        examples=tuple(examples),
        notes=(*notes, *_evaluation_notes(task, inputs, trials)),
    )


def _evaluation_notes(task: TaskFile, inputs: TaskInputs, trials: TrialProposals) -> tuple[str, ...]:
    validation = inputs.data.validation
    plan = plan_evaluation(task, trials.first, validation=validation)
    note = evaluation_note(plan, task=task, num_available=len(validation))
    return () if note is None else (note,)


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
                f"{other} is {' or '.join(map(str, values))}" for other, values in parameter.when.items()
            )
            yield f"search.space.{name} is searched when {when}; else {name} is {parameter.otherwise}"


def _budget_notes(task: TaskFile) -> Iterator[str]:
    search = task.search
    kind = sampler_kind(search.sampler)
    proposes_later = kind.learns or search.first_trials or search.max_gpu_hours
    if kind.takes_whole_space or not proposes_later:
        return
    size = task.search_space().size_bound()
    most = search.trials if size is None else min(search.trials, size)
    first = min(num_first_trials(task) or most, most)
    if first == most and search.max_gpu_hours is None:
        return
    until = "" if search.max_gpu_hours is None else f", none after {search.max_gpu_hours:g} h on the device"
    yield f"{counted(first, 'trial')} at first, then one for each that ends, {most} at most{until}"
