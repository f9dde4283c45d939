"""Packed LoRA linear: every adapter of a pack in one frozen product."""

from cohort.kernels.packed_linear.choice.augmented import PaddedRows
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.op import input_room, packed_linear, product_and_term
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable

__all__ = [
    "FrozenProduct",
    "LaunchTables",
    "LoraPart",
    "PaddedRows",
    "SlotTable",
    "input_room",
    "packed_linear",
    "product_and_term",
]
