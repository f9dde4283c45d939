"""The log as metrics.jsonl: strict JSON, written at once or as it grows."""

from __future__ import annotations

import json

from cohort.core.events import StepDone
from cohort.runs.results.metrics_file import MetricsFile
from tests.runs.small_run import SmallRun


def test_metrics_are_log_history_in_strict_json(run: SmallRun) -> None:
    directory, store, _ = run
    MetricsFile(directory.metrics_jsonl, reader=store.reader).write()

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in directory.metrics_jsonl.read_text().splitlines()]
    assert len(lines) == 9
    assert lines[3] == {
        "trial": 0,
        "step": 4,
        "seconds": 0.0,
        "loss": 1.0,
        "grad_norm": 0.5,
        "learning_rate": 1e-4,
        "num_tokens": 400,
    }
    assert lines[4]["eval_exact_match"] == 0.5
    assert lines[-1]["loss"] is None


def test_a_file_that_grew_is_the_file_written_at_once(run: SmallRun) -> None:
    directory, store, _ = run
    grown = MetricsFile(directory.metrics_jsonl, reader=store.reader)
    grown.write()
    before = directory.metrics_jsonl.read_bytes()
    for step in (5, 6):
        store.append([StepDone(trial_id=0, step=step, loss=0.5, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)])
        grown.append()
    whole = directory.root / "whole.jsonl"
    MetricsFile(whole, reader=store.reader).write()
    assert directory.metrics_jsonl.read_bytes() == whole.read_bytes()
    assert whole.read_bytes().startswith(before)
    assert json.loads(whole.read_text().splitlines()[-1])["num_tokens"] == 600
    # one that a user moved away comes back whole
    directory.metrics_jsonl.unlink()
    grown.append()
    assert directory.metrics_jsonl.read_bytes() == whole.read_bytes()
