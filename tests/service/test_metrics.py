"""Counters and times as Prometheus reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cohort.service.metrics import ServerMetrics, TokenIntervals
from cohort.serving.step_output import FinishReason, StepOutput


def text_of(metrics: ServerMetrics) -> str:
    scheduler = SimpleNamespace(running=[1, 2], waiting=[3], preempted=[4], num_preemptions=5)
    blocks = SimpleNamespace(num_used=1, num_blocks=4, num_hits=6)
    pool = SimpleNamespace(statuses=lambda: [SimpleNamespace(residence=place) for place in ("device", "disk")])
    thread: Any = SimpleNamespace(engine=SimpleNamespace(scheduler=scheduler, blocks=blocks), pool=pool)
    return metrics.text(thread).decode()


def test_what_an_engine_is_doing_and_has_done() -> None:
    metrics = ServerMetrics("tiny")
    metrics.count_prompt(7)
    metrics.count_answer("/v1/completions", 429)
    ended = StepOutput(number=1, token=None, finish=FinishReason.STOP)
    metrics.count_step([StepOutput(number=0, token=3), ended])
    text = text_of(metrics)
    for line in (
        'vllm:num_requests_running{model_name="tiny"} 2.0',
        'vllm:num_requests_waiting{model_name="tiny"} 2.0',
        'vllm:kv_cache_usage_perc{model_name="tiny"} 0.25',
        'cohort:adapters_on_device{model_name="tiny"} 1.0',
        'cohort:adapters_registered{model_name="tiny"} 2.0',
        'vllm:prompt_tokens_total{model_name="tiny"} 7.0',
        'vllm:generation_tokens_total{model_name="tiny"} 1.0',
        'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1.0',
        'cohort:http_requests_total{model_name="tiny",path="/v1/completions",status="429"} 1.0',
    ):
        assert line in text


def test_times_of_a_request_from_its_first_token_to_its_last() -> None:
    metrics = ServerMetrics("tiny")
    times = metrics.timed()
    for token in (1, 2, 3):
        times.heard([(0, StepOutput(number=0, token=token))])
    times.heard([(0, StepOutput(number=0, token=None, finish=FinishReason.STOP))])
    text = text_of(metrics)
    for name, count in (
        ("time_to_first_token_seconds", 1),
        ("inter_token_latency_seconds", 2),
        ("e2e_request_latency_seconds", 1),
    ):
        assert f'vllm:{name}_count{{model_name="tiny"}} {count}.0' in text
    # servers count apart
    assert 'e2e_request_latency_seconds_count{model_name="tiny"} 1.0' not in text_of(ServerMetrics("tiny"))


def test_seconds_between_tokens_fall_into_prometheus_buckets_up_to_and_with_their_edge() -> None:
    intervals = TokenIntervals({"model_name": "tiny"})
    for seconds in (0.0, 0.0, 0.0, 0.001, 0.0011, 0.0011, 100.0):
        intervals.heard.add(seconds)
    (family,) = intervals.collect()
    counts = {sample.labels.get("le"): sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert (counts["0.001"], counts["0.005"], counts["60.0"], counts["+Inf"]) == (4, 6, 6, 7)
    total = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples if "le" not in sample.labels}
    assert total["count"] == 7
    assert total["sum"] == 0.001 + 0.0011 + 0.0011 + 100.0
