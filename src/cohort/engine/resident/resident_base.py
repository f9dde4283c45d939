"""A base model that stays in memory, and what sweeps may take of the memory next to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cohort.engine.shared_base import SharedBase
from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.sweep_turns import FILL_TOKENS, SweepTurns
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes
from cohort.memory.pass_estimates import estimate_passes
from cohort.memory.plan import MemoryPlan
from cohort.models.decoder import Decoder
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone
from cohort.prepare.fingerprints import model_fingerprint

__all__ = ["ResidentBase"]


@dataclass(frozen=True, kw_only=True)
class ResidentBase:
    """A loaded base model.

    Attributes:
        decoder: The model.
        directory: Its files.
        machine: Device and precision; its memory is what sweeps may take for adapters and passes.
        sizes: The executor's that sweeps train in.
        turns: Which thread computes with it.
        fill_tokens: About how many tokens a step of several tenants has; None: by the device.
    """

    decoder: Decoder
    directory: Path
    machine: Machine
    sizes: Sizes
    turns: BaseTurns
    fill_tokens: int | None = None

    @cached_property
    def sha256(self) -> str:
        """Of its files (hex)."""
        return model_fingerprint(self.directory)

    def shared(self) -> SharedBase:
        """Return it as a session of sweeps finds it."""
        device = self.machine.device
        needs = None
        if device.type == "cuda":
            needs = estimate_passes(self.decoder.config, dtype=self.decoder.dtype, device=device)
        memory = MemoryPlan(
            machine=self.machine,
            needs=needs,
            profile=None,
            limit_bytes=None,
            base_bytes=self.decoder.num_bytes,
        )
        backbone = LoadedBackbone(
            decoder=self.decoder, model_hash=self.sha256, memory=memory, sizes=self.sizes, is_resident=True
        )
        fill = self.fill_tokens or FILL_TOKENS[device.type]
        return SharedBase(
            backbone=backbone,
            turns=SweepTurns(self.turns, fill_tokens=fill),
            before_pass=self.turns.give_way,
        )
