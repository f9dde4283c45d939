"""One AdamW step for every slot of a bank, each with its own settings."""

from cohort.kernels.adamw.op import adamw_step
from cohort.kernels.adamw.slot_update import SlotUpdate, StagedSlots, stage_slots

__all__ = ["SlotUpdate", "StagedSlots", "adamw_step", "stage_slots"]
