"""Which configurations are tried: one sampler per file of ``kinds`` behind one interface (``sampler.py``)."""

from cohort.tuning.samplers.building import SAMPLERS, build_sampler, count_configurations, sampler_kind
from cohort.tuning.samplers.sampler import EarlierResult, Sampler, SamplerKind, SearchBudget

__all__ = [
    "SAMPLERS",
    "EarlierResult",
    "Sampler",
    "SamplerKind",
    "SearchBudget",
    "build_sampler",
    "count_configurations",
    "sampler_kind",
]
