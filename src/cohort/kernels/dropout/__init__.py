"""LoRA dropout whose mask is a pure function of what is dropped, never of where it stands in a pack."""

from cohort.kernels.dropout.reference import dropout_rows, keep_mask, keep_threshold, kept_rows, module_key, row_keys

__all__ = ["dropout_rows", "keep_mask", "keep_threshold", "kept_rows", "module_key", "row_keys"]
