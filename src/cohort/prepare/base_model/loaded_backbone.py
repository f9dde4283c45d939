"""A base model that is loaded already, and which tasks may train on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes
from cohort.memory.demand import Demand
from cohort.memory.plan import MemoryPlan
from cohort.models.decoder import Decoder
from cohort.prepare.base_model.numerics import NumericsChoice
from cohort.prepare.base_model.placed_model import PlacedModel
from cohort.prepare.fingerprints import model_fingerprint
from cohort.tasks.task_file import TaskFile

__all__ = ["LoadedBackbone"]


@dataclass(frozen=True, kw_only=True)
class LoadedBackbone:
    """A base model that is loaded already, for tasks that share it.

    Attributes:
        decoder: The model.
        model_hash: SHA-256 of its files.
        memory: The memory of its passes, as measured for the first task.
        sizes: The sizes of its executor, if it has one.
        is_resident: Whether it stays in memory and others compute with it: a task that names no numerics has its own.
    """

    decoder: Decoder
    model_hash: str
    memory: MemoryPlan
    sizes: Sizes | None = None
    is_resident: bool = False

    @property
    def numerics(self) -> NumericsChoice | None:
        """What a task has that names none; None where it is chosen for the task."""
        if not self.is_resident:
            return None
        return NumericsChoice(numerics=self.memory.machine.numerics, reason="as the base model in memory has them")

    def placed(self, demand: Demand, *, loaded_at: float) -> PlacedModel:
        """Return it as another task finds it."""
        return PlacedModel(demand=demand, decoder=self.decoder, memory=self.memory, loaded_at=loaded_at)

    def require_same(self, task: TaskFile, *, directory: Path, machine: Machine) -> None:
        """Refuse a task of another base model or device.

        Raises:
            InputError: the files in ``directory`` are others, or ``machine`` trains on another device or in another
                format of weights.
        """
        kept = self.memory.machine.quantization
        if kept != machine.quantization:
            raise InputError(
                Problem(
                    where=task.where("quantization"),
                    found=f"{machine.quantization}, but the other tasks of this session have {kept}",
                    allowed="one format for all: they share the base model",
                    hint=f"Write quantization: {kept}, or tune it in a session of its own.",
                )
            )
        numerics = self.memory.machine.numerics
        if numerics != machine.numerics and (machine.device.type != "cpu" or task.rewards is not None):
            why = f" ({machine.numerics_reason})" if machine.numerics_reason else ""
            raise InputError(
                Problem(
                    where=task.where("numerics"),
                    found=f"{machine.numerics}{why}, but the other tasks of this session have {numerics}",
                    allowed="the same for all: they share the base model and its passes",
                    hint=f"Write numerics: {numerics}, or tune it in a session of its own.",
                )
            )
        device, own = self.memory.machine.device.type, machine.device.type
        if device != own:
            raise InputError(
                Problem(
                    where=task.where("num_gpus"),
                    found=f"{own}, but the other tasks of this session train on {device}",
                    allowed="one device for all",
                    hint="Write the same num_gpus.",
                )
            )
        # by content and not by name: two paths may hold the same weights, and one name two versions
        if model_fingerprint(directory) != self.model_hash:
            unlike = "a base model that the session's other tasks do not use"
            unlike = "which is not the base model in memory" if self.is_resident else unlike
            raise InputError(
                Problem(
                    where=task.where("model_name_or_path"),
                    found=f"{task.model_name_or_path}, {unlike}",
                    allowed="the same weights and configuration",
                    hint="Tune it in a session of its own.",
                )
            )
