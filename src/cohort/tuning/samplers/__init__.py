"""Which configurations are tried: the whole grid, random draws, or TPE; the last two by Optuna."""

from cohort.tuning.samplers.building import build_sampler, count_configurations
from cohort.tuning.samplers.grid import GridSampler
from cohort.tuning.samplers.optuna_sampler import OptunaSampler
from cohort.tuning.samplers.sampler import Proposal, Sampler, SamplerName

__all__ = [
    "GridSampler",
    "OptunaSampler",
    "Proposal",
    "Sampler",
    "SamplerName",
    "build_sampler",
    "count_configurations",
]
