"""Seconds of a step of a task's packs on a machine: from steps that runs measured there, else by arithmetic."""

from __future__ import annotations

from cohort.adapters.bank import aligned_rank
from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine
from cohort.machine.measurements import read_costs
from cohort.memory.smallest_memory import weight_bytes
from cohort.models.counts import count_model
from cohort.prepare.evaluations import tokens_per_row
from cohort.prepare.inputs import TaskInputs
from cohort.scheduling.cost.analytic import ModelWork, analytic_step_cost
from cohort.scheduling.cost.fit import fit_step_cost
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import EVALUATION_SHARE
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec

__all__ = ["expected_step_cost", "model_work", "work_with_evaluations"]


def model_work(inputs: TaskInputs, *, weight_bytes: float, bytes_per_value: int, recomputed: int = 0) -> ModelWork:
    """Return what the base model of a task amounts to.

    Args:
        weight_bytes: Of the whole base model in the task's format.
        bytes_per_value: Of what is computed.
        recomputed: Additional forward passes of the layers in a training pass.
    """
    counts, train, layout = count_model(inputs.config), inputs.data.train, inputs.layout
    # the loss head computes only tokens that are trained on
    trained_share = float(train.trained_T.mean())
    return ModelWork(
        flops_per_token=(2 + recomputed) * counts.linear_flops_per_token
        + 3 * trained_share * counts.head_flops_per_token,
        # a causal sequence sees half of its square, and attention's backward costs twice its forward
        flops_per_square=(1.5 + 0.5 * recomputed) * counts.attention_flops_per_pair,
        weight_bytes=weight_bytes,
        rank_width=layout.width,
        num_linears=len(layout.linears),
        num_layers=inputs.config.num_layers,
        hidden_size=inputs.config.hidden_size,
        bytes_per_value=bytes_per_value,
    )


def expected_step_cost(inputs: TaskInputs, machine: Machine, *, works: tuple[AdapterWork, ...]) -> StepCost:
    """Return the convex cost of a step of one executor of ``machine``.

    Args:
        works: Of the task's trials: steps of very different ranks are not taken for theirs.
    """
    hardware = hardware_of(machine)
    work = model_work(
        inputs,
        weight_bytes=float(weight_bytes(inputs.config, machine)),
        bytes_per_value=2 if hardware.is_gpu else 4,
    )
    cost = analytic_step_cost(work, hardware)
    measured = read_costs(inputs.cost_key(hardware=hardware.name, precision=machine.precision))
    samples = measured.alike({each.r for each in works}, cost=cost).samples
    return fit_step_cost(samples, held_out=(), prior=cost).cost if samples else cost


def work_with_evaluations(
    spec: TrialSpec, *, task: TaskFile, inputs: TaskInputs, num_evaluations: int, num_rows: int
) -> AdapterWork:
    """Return what a trial adds to its pack, its evaluations spread over its steps.

    Args:
        num_evaluations: Over all of its steps.
        num_rows: Validation rows of one.
    """
    lengths = inputs.data.train.lengths.astype(float)
    # an evaluated token is a part of a trained one
    rows_per_step = EVALUATION_SHARE * num_evaluations * num_rows / spec.num_steps
    return AdapterWork(
        r=aligned_rank(spec.adapter.num_rows),
        num_tokens=spec.batch_size * float(lengths.mean())
        + rows_per_step * tokens_per_row(task, inputs.data.validation),
        num_steps=spec.num_steps,
        sum_squares=spec.batch_size * float((lengths**2).mean()),
        num_sequences=spec.batch_size + rows_per_step,
    )
