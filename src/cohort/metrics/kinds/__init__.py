"""Metrics of generated text by name. A new one is a file here with its ``METRIC``, named as its file.

In another package, it is an entry point of ``cohort.metrics`` that names a ``MetricKind``.
"""

from __future__ import annotations

from cohort.core.registry import Registry
from cohort.metrics.metric import MetricKind

__all__ = ["METRIC_KINDS"]

METRIC_KINDS = Registry(
    kind=MetricKind,
    noun="metric",
    package="cohort.metrics.kinds",
    constant="METRIC",
    group="cohort.metrics",
    default="exact_match",
)
