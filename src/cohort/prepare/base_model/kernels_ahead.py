"""The kernels of a task, collected before its rows are read: workers compile while rows are tokenised.

Which kernels a task launches follows from its model and its search space, and hardly from how long its rows are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from cohort.machine.compile_ahead.launched_model import launched_model
from cohort.machine.compile_ahead.task_kernels import KernelWarmUp
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.machine.machine import Machine
from cohort.models.checkpoint_layout import adapter_layout
from cohort.models.config import DecoderConfig
from cohort.models.weight_formats import PLAIN
from cohort.prepare.adapters.saved_checks import saved_modules
from cohort.prepare.base_model.chosen_modules import select_modules
from cohort.prepare.base_model.numerics import recorded_choice, with_numerics
from cohort.prepare.base_model.weights_ahead import WeightsAhead
from cohort.prepare.proposals import TrialProposals
from cohort.runs.facts import RunFacts
from cohort.tasks.task_file import TaskFile
from cohort.training.memory_probe import ProbePass, probe_rows

__all__ = ["KernelsAhead"]

# tokens of a usual row: 120 to 300 give an 8B model the same kernels, and those of other lengths are collected again
USUAL_TOKENS = 200


class KernelsAhead:
    """What a first start collects before it reads rows.

    Attributes:
        kernels: What was collected; None where nothing was. They are a task's if they are of the same model, adapters
            and numerics: :class:`KernelWarmUp` compares.
    """

    def __init__(
        self,
        task: TaskFile,
        *,
        weights: WeightsAhead,
        workers: KernelCompiler | None,
        begun: RunFacts | None,
        say: Callable[[str], None],
    ) -> None:
        """Collect for ``task``, where there are ``workers``.

        Args:
            weights: What loads the model, if one device will hold it as a whole and has room for both.
            begun: The record of a run that is resumed: it keeps its numerics.
        """
        self._task, self._weights, self._workers, self._say = task, weights, workers, say
        self._numerics = None if begun is None else recorded_choice(begun.machine.numerics)
        self.kernels: KernelWarmUp | None = None

    def begin(self, directory: Path, config: DecoderConfig, machine: Machine) -> None:
        """Begin to load the model, and collect its kernels meanwhile."""
        self._weights.begin(directory, config, machine)
        # what a quantised weight launches depends on how it is kept
        if self._workers is not None and self._weights.is_loading and machine.quantization == PLAIN.name:
            # errors are reported where the task's inputs are checked, and kernels are collected after that
            with contextlib.suppress(Exception):
                self._collect(config, machine, self._workers)

    def _collect(self, config: DecoderConfig, machine: Machine, workers: KernelCompiler) -> None:
        modules = select_modules(self._task, config, [])
        if modules is None:
            return
        layout = adapter_layout(config, modules)
        # rows decide how many steps a trial has, and nothing of its adapter
        proposals = TrialProposals(
            self._task,
            probe_rows(ProbePass(r=1, lengths=(2,)), vocabulary=2),
            saved=saved_modules(self._task, config=config, layout=layout),
        )
        kernels = KernelWarmUp(
            with_numerics(self._task, machine, config=config, num_gpus=1, recorded=self._numerics),
            model=launched_model(None, config=config, layout=layout),
            adapters=[spec.adapter for spec in proposals.largest()],
            mean_length=USUAL_TOKENS,
            say=self._say,
            workers=workers,
        )
        if kernels.collects_first:
            kernels.begin()
            self.kernels = kernels
            self._say("reading and tokenising the data")
