"""Metrics of generated text: pure functions of a prediction and its row, for tuning, for tests of a run, for services.

Text in, a number out: nothing here generates, and nothing needs torch. :func:`build_metrics` makes the metrics that a
user names, :func:`score_texts` applies all of them to one set of generated texts.
"""

from cohort.metrics.building import (
    METRICS_ALLOWED,
    build_metrics,
    counts_hits,
    metric_name,
    metric_problems,
    needs_generation,
    option_problems,
    own_metrics,
    pattern_problems,
)
from cohort.metrics.functions import FunctionRefusedError, function_path, spelled_function
from cohort.metrics.kinds import METRIC_KINDS
from cohort.metrics.metric import (
    CHOICE_ACCURACY,
    LOSS,
    REWARD,
    REWARD_ACCURACY,
    REWARD_MARGIN,
    REWARD_METRICS,
    Metric,
    MetricFailedError,
    MetricOptions,
    ReferenceRow,
    score_texts,
)

__all__ = [
    "CHOICE_ACCURACY",
    "LOSS",
    "METRICS_ALLOWED",
    "METRIC_KINDS",
    "REWARD",
    "REWARD_ACCURACY",
    "REWARD_MARGIN",
    "REWARD_METRICS",
    "FunctionRefusedError",
    "Metric",
    "MetricFailedError",
    "MetricOptions",
    "ReferenceRow",
    "build_metrics",
    "counts_hits",
    "function_path",
    "metric_name",
    "metric_problems",
    "needs_generation",
    "own_metrics",
    "option_problems",
    "pattern_problems",
    "score_texts",
    "spelled_function",
]
