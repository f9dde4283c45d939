"""Cohort's own metrics of generated text by name, which is their file's. A new one is a file with its ``METRIC``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.metrics.metric import MetricKind

__all__ = ["METRIC_KINDS"]

METRIC_KINDS: dict[str, MetricKind] = offered_in(__name__, "METRIC")
