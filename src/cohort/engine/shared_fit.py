"""Whether a task can train in the executor of other tasks: what a bank and its passes hold alike for all of them."""

from __future__ import annotations

from cohort.core.errors import InputError, Problem
from cohort.memory.budget import Sizes
from cohort.memory.size_inputs import SizeInputs
from cohort.prepare.preparation import Preparation
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile

__all__ = ["CannotShareError", "fit_problems", "several_gpus", "too_long"]

_ALONE = "Tune this task in a session of its own."


class CannotShareError(InputError):
    """A task is in order, but cannot share the executor with those that are there."""


def fit_problems(
    preparation: Preparation, *, first: Preparation, sizes: Sizes | None = None, threads: int | None = None
) -> list[Problem]:
    """Return why a task cannot share an executor; nothing if it can.

    Args:
        preparation: The task's.
        first: Of the task that was there first, whose base model it shares already.
        sizes: The executor's; None while it is not built, and can still be made as large as the task needs.
        threads: CPU threads that the task's run began with; None for a new run.
    """
    task, problems, linears = preparation.task, [], preparation.inputs.target_modules
    # a rank row holds the same linears for every adapter of a bank
    if linears != first.inputs.target_modules:
        problems.append(
            Problem(
                where=task.where("lora.target_modules"),
                found=f"{len(linears)} linears, which differ from those of the session's tasks",
                allowed="the same target_modules: tasks that train together adapt the same linears",
                hint=_ALONE,
            )
        )
    if task.memory != first.task.memory:
        problems.append(
            Problem(
                where=task.where("memory"),
                found="a memory section that differs from that of the session's tasks",
                allowed="the same: all tasks train in the same passes, within one limit",
                hint="Write the same section, or tune this task in a session of its own.",
            )
        )
    theirs, own = possible_optimizers(first.task), possible_optimizers(task)
    if own != theirs:
        problems.append(
            Problem(
                where=task.where("training.optim"),
                found=f"{', '.join(own)}; the session's tasks have {', '.join(theirs)}",
                allowed="the same where one of them is adamw_8bit: tasks that train together keep states of one kind",
                hint="Write the same optim, or tune this task in a session of its own.",
            )
        )
    if preparation.objective.samples_answers != first.objective.samples_answers:
        problems.append(
            Problem(
                where=task.where("objective"),
                found=f"{task.objective.type} next to {first.task.objective.type}",
                allowed="tasks that all draw the answers they train on, or none: the others would wait for answers",
                hint=_ALONE,
            )
        )
    if threads is not None and threads != (there := preparation.machine.threads):
        problems.append(
            Problem(
                where=task.where("num_gpus"),
                found=f"a run that began with {threads} CPU threads",
                allowed=f"the {there} of the session: the number of threads is a part of a run's identity",
                hint="Resume it by itself.",
            )
        )
    if sizes is not None:
        problems += _size_problems(preparation, first=first, sizes=sizes)
    return problems


def _size_problems(preparation: Preparation, *, first: Preparation, sizes: Sizes) -> list[Problem]:
    """Return what does not fit: the bank was made for the tasks that were there first, and does not grow."""
    task, problems = preparation.task, []
    own, there = _needs(preparation), _needs(first)
    if own.most_rows > (rank_rows := sizes.capacity.rank_rows):
        problems.append(
            Problem(
                where=task.where("lora.modules_to_save" if task.lora.modules_to_save else "search.space.r"),
                found=str(own.most_rows),
                allowed=f"at most {rank_rows}, the rank rows of the running session",
                hint="Submit the task before the session runs, or tune it in a session of its own.",
            )
        )
    if own.row_bytes > there.row_bytes or own.mask_bytes > there.mask_bytes:
        problems.append(
            Problem(
                where=task.where("lora"),
                found="a variant of LoRA whose adapters take more memory than the session's",
                allowed="variants that a task of the session had when it began",
                hint=_ALONE,
            )
        )
    longest = _longest(preparation)
    if longest > (tokens := int(max(sizes.capacity.tokens_per_step, sizes.executor.token_budget, there.longest_row))):
        problems.append(
            Problem(
                where=task.where("dataset.max_length"),
                found=f"a row of {longest:,} tokens",
                allowed=f"at most {tokens:,}, for which the session's passes have room",
                hint=_ALONE,
            )
        )
    return problems


def too_long(preparation: Preparation, *, sizes: Sizes | None) -> Problem | None:
    """Return what is wrong with a task whose longest row has no room in the passes that memory was planned for."""
    if sizes is None:
        return None
    longest = _longest(preparation)
    if longest <= (tokens := int(sizes.capacity.tokens_per_step)):
        return None
    return Problem(
        where=preparation.task.where("dataset.max_length"),
        found=f"a row of {longest:,} tokens",
        allowed=f"at most {tokens:,}, for which the base model's passes have room",
        hint="Write a lower max_length, or tune this task by itself.",
    )


def _longest(preparation: Preparation) -> int:
    """Return the tokens of the longest row, or group of rows that share a pass."""
    return max(_needs(preparation).longest_row, int(preparation.inputs.data.validation.lengths.max()))


def _needs(preparation: Preparation) -> SizeInputs:
    # no needs: what passes take was settled with the first task; asked is what an adapter takes
    specs = preparation.proposals.largest()
    return preparation.inputs.demand(preparation.task, preparation.machine, specs=specs).size_inputs(needs=None)


def several_gpus(task: TaskFile) -> Problem | None:
    """Return what is wrong with a task that asks for several GPUs: an executor that tasks share has one."""
    if task.num_gpus == "auto" or task.num_gpus <= 1:
        return None
    return Problem(
        where=task.where("num_gpus"),
        found=str(task.num_gpus),
        allowed="auto | 0 (CPU) | 1: tasks of a session share one GPU",
        hint="Write num_gpus: 1, or tune this task by itself.",
    )
