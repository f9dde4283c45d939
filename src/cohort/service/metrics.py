"""Numbers of a running server for Prometheus, under vLLM's names where the meaning is the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from cohort.service.engine_thread import EngineThread
from cohort.service.request_times import BUCKET_SECONDS, IntervalCounts, RequestTimes
from cohort.serving.step_output import StepOutput

__all__ = ["ServerMetrics", "TokenIntervals"]


class ServerMetrics:
    """Counts what requests see. Each server has a registry of its own."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name}
        labels = tuple(self._labels)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, labels, registry=self._registry)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, (*labels, *more), registry=self._registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, labels, buckets=BUCKET_SECONDS, registry=self._registry)

        self._running = gauge("vllm:num_requests_running", "Sequences in the running batch.")
        self._waiting = gauge("vllm:num_requests_waiting", "Sequences that wait to run.")
        self._cache = gauge("vllm:kv_cache_usage_perc", "Share of the blocks of keys and values in use, 0 to 1.")
        self._adapters = gauge("cohort:adapters_registered", "Adapters that requests can name.")
        self._resident = gauge("cohort:adapters_on_device", "Adapters in slots of the device.")
        self._preemptions = gauge("cohort:preemptions", "Preemptions since the start.")
        self._hits = gauge("cohort:prefix_blocks_hit", "Blocks of prompts found in the prefix cache since the start.")
        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of prompts that were accepted.")
        self._generated = counter("vllm:generation_tokens", "Tokens generated.")
        self._finished = counter("vllm:request_success", "Sequences that ended, by reason.", "finished_reason")
        self._answered = counter("cohort:http_requests", "Answers by path and status.", "path", "status")
        self._first = histogram("vllm:time_to_first_token_seconds", "From a request to its first token.")
        self._each = TokenIntervals(self._labels)
        self._registry.register(self._each)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From a request to its last token.")

    def count_step(self, outputs: Sequence[StepOutput]) -> None:
        """Count what one step of the engine gave; called in the engine's thread."""
        generated = sum(output.token is not None for output in outputs)
        if generated:
            self._generated.labels(**self._labels).inc(generated)
        for output in outputs:
            if output.finish is not None:
                self._finished.labels(**self._labels, finished_reason=output.finish.value).inc()

    def count_prompt(self, num_tokens: int) -> None:
        self._prompt_tokens.labels(**self._labels).inc(num_tokens)

    def count_answer(self, path: str, status: int) -> None:
        self._answered.labels(**self._labels, path=path, status=str(status)).inc()

    def timed(self) -> RequestTimes:
        first, whole = self._first.labels(**self._labels), self._whole.labels(**self._labels)
        return RequestTimes(first, self._each.heard, whole, begun=time.perf_counter())

    def count_written(self, first: Sequence[float], whole: Sequence[float], each: IntervalCounts) -> None:
        """Add the times of streams that another process writes; called by one thread.

        Args:
            first: Seconds from a request to its first token.
            whole: Seconds from a request to its last token.
            each: Seconds between tokens.
        """
        for seconds in first:
            self._first.labels(**self._labels).observe(seconds)
        for seconds in whole:
            self._whole.labels(**self._labels).observe(seconds)
        self._each.written.add_counts(each.counts, each.total_seconds)

    def text(self, thread: EngineThread) -> bytes:
        """Return all numbers in Prometheus' text format."""
        engine = thread.engine
        scheduler, blocks = engine.scheduler, engine.blocks
        statuses = thread.pool.statuses()
        values = {
            self._running: len(scheduler.running),
            self._waiting: len(scheduler.waiting) + len(scheduler.preempted),
            self._cache: blocks.num_used / blocks.num_blocks,
            self._adapters: len(statuses),
            self._resident: sum(status.residence == "device" for status in statuses),
            self._preemptions: scheduler.num_preemptions,
            self._hits: blocks.num_hits,
        }
        for each, value in values.items():
            each.labels(**self._labels).set(value)
        return generate_latest(self._registry)


class TokenIntervals(Collector):
    """Seconds between the tokens of a sequence, as a histogram.

    Attributes:
        heard: Of answers that the event loop gives.
        written: Of streams that another process writes.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        # each has one thread that adds, so none of them needs a lock
        self.heard, self.written = IntervalCounts(), IntervalCounts()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Give the histogram as it is now."""
        family = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds", "Between the tokens of a sequence.", labels=list(self._labels)
        )
        buckets, total = [], 0
        edges = [*map(str, BUCKET_SECONDS), "+Inf"]
        for edge, heard, written in zip(edges, self.heard.counts, self.written.counts, strict=True):
            total += heard + written
            buckets.append((edge, total))
        seconds = self.heard.total_seconds + self.written.total_seconds
        family.add_metric(list(self._labels.values()), buckets=buckets, sum_value=seconds)
        yield family
