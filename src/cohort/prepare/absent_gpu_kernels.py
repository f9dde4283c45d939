"""Compiles the kernels of a task for a GPU that this machine does not have: for images, and for nodes without GPUs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from cohort.core.errors import InputError, Problem
from cohort.kernels.compile_ahead import Compiled
from cohort.machine.absent_gpu import absent_gpu
from cohort.machine.gpu_kinds import GpuKind
from cohort.memory.model_place import choose_model_place
from cohort.models.weight_formats import PLAIN
from cohort.prepare.inputs import read_inputs_and_machine
from cohort.prepare.kernels import KernelWarmUp
from cohort.prepare.proposals import TrialProposals
from cohort.ranks.launched_model import launched_model
from cohort.tasks.task_file import TaskFile

__all__ = ["compile_for_absent_gpu"]


def compile_for_absent_gpu(task: TaskFile, kind: GpuKind, *, say: Callable[[str], None]) -> Compiled:
    """Compile what a run of ``task`` on GPUs of ``kind`` compiles before its first step; return how much that was.

    No weights are read, and nothing is measured.

    Raises:
        InputError: every problem of the task's inputs; Triton is missing; or the task's kernels follow from weights.
    """
    if importlib.util.find_spec("triton") is None:
        raise InputError(
            Problem(
                where="--gpu",
                found="no Triton here, which compiles the kernels",
                allowed="the Triton that runs use",
                hint="Install the torch and Triton of the machine that trains: pip install '.[gpu]'.",
            )
        )
    if task.num_gpus == 0 or task.quantization != PLAIN.name:
        is_for_cpu = task.num_gpus == 0
        raise InputError(
            Problem(
                where=task.where("num_gpus" if is_for_cpu else "quantization"),
                found="0, the CPU, for which nothing is compiled" if is_for_cpu else task.quantization,
                allowed="auto | 1 or more" if is_for_cpu else PLAIN.name,
                hint="Leave --warm out."
                if is_for_cpu
                else "Run --warm without --gpu on a machine with that GPU: the "
                "kernels for such weights follow from how they are kept there.",
            )
        )
    with absent_gpu(kind):
        say("reading and tokenising the data")
        inputs, machine = read_inputs_and_machine(task)
        specs = TrialProposals(task, inputs.data.train, saved=inputs.saved_modules(task)).largest()
        demand = inputs.demand(task, machine, specs=specs)
        # ranks that hold the model together launch others
        group = choose_model_place(demand).group
        launched = launched_model(group, config=demand.config, layout=demand.layout)
        with KernelWarmUp(demand, model=launched, say=say) as kernels:
            kernels.begin()
            if kernels.problem:
                raise InputError(
                    Problem(
                        where="--gpu",
                        found=f"passes of {task.model_name_or_path} that need the GPU itself: {kernels.problem}",
                        allowed="a model whose kernels follow from shapes",
                        hint="Run --warm without --gpu on a machine with that GPU.",
                    )
                )
            return kernels.finish(None)
