"""AdamW whose moments are kept in 8 bits, in blocks of a rank row."""

from cohort.kernels.adamw_8bit.op import BLOCK, BlockMoment, adamw_8bit_step

__all__ = ["BLOCK", "BlockMoment", "adamw_8bit_step"]
