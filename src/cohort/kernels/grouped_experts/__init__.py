"""Experts of a whole stream at once: rows to experts and back, and the adapters' terms by groups of expert and slot."""

from cohort.kernels.grouped_experts.groups import AdapterGroups, ExpertRows, SlotRows
from cohort.kernels.grouped_experts.op import GroupedFactors, adapted_product, combine_rows, spread_rows

__all__ = [
    "AdapterGroups",
    "ExpertRows",
    "GroupedFactors",
    "SlotRows",
    "adapted_product",
    "combine_rows",
    "spread_rows",
]
