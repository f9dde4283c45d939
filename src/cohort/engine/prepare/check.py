"""Validates everything a task needs and trains nothing: task, model files, target modules, tokenizer, every row."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.data.inspection import RenderedExample, render_examples
from cohort.data.report import DataReport
from cohort.engine.machine.machine import choose_machine
from cohort.engine.memory.limit import require_room_for_an_adapter
from cohort.engine.prepare.data_notes import split_notes
from cohort.engine.prepare.inputs import TaskInputs, read_inputs
from cohort.engine.prepare.proposals import TrialProposals
from cohort.engine.prepare.search_notes import search_notes
from cohort.engine.prepare.trials import evaluation_note, plan_evaluation
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.counts import count_model
from cohort.tasks.loading import TaskFile

__all__ = ["CheckReport", "check_task"]

_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a task amounts to.

    Attributes:
        architecture: Class name of the base model.
        num_parameters: Of the base model.
        target_modules: Full paths of the linears that get an adapter.
        num_trials: Configurations that will be tried.
        device: What it would train on here.
        data: What reading the rows found.
        examples: The first training rows, decoded from the tokens and masks that training reads.
        notes: What the user may want to know.
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
    """Return what the task amounts to.

    Args:
        task: A task that is valid in itself.
        max_problems: Most problems of the data to list; None lists all.

    Raises:
        InputError: every problem of the machine, the model's files, the target modules, the rows and the memory limit.
    """
    try:
        machine = choose_machine(task.num_gpus, where=task.where("num_gpus"))
    except InputError as error:
        read_inputs(task, max_problems=max_problems, also=error.problems)
        raise
    inputs = read_inputs(task, max_problems=max_problems, machine=machine)
    trials = TrialProposals(task, num_rows=len(inputs.data.train), num_tokens=int(inputs.data.train.offsets[-1]))
    shapes = linear_shapes(inputs.config)
    layout = AdapterLayout({name: shapes[name] for name in inputs.target_modules})
    require_room_for_an_adapter(
        task,
        machine,
        config=inputs.config,
        layout=layout,
        specs=trials.largest(),
        longest_row=int(inputs.data.train.lengths.max()),
    )
    examples = render_examples(inputs.data.train, tokenizer=inputs.tokenizer, count=_NUM_EXAMPLES)
    notes = (*task.notes(), *search_notes(task), *split_notes(inputs.data.report))
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
