"""Where an adapter comes from, read from a run's record; a record may not have all of it yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.runs.fact_groups import InputFacts, TaskFacts
from cohort.runs.facts import RunFacts
from cohort.runs.results.provenance import data_settings, evaluation_settings, linears_text, prompt_template


def test_a_home_directory_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    train = ["/home/somebody/rows.jsonl", {"path": "/home/somebody/more.jsonl", "weight": 2}, "/data/rows.jsonl"]
    facts = RunFacts(task=TaskFacts(document={"dataset": {"train": train, "prompt_template": "{a}", "columns": {}}}))
    assert data_settings(facts) == {
        "train": ["~/rows.jsonl", {"path": "~/more.jsonl", "weight": 2}, "/data/rows.jsonl"]
    }
    assert prompt_template(facts) == "{a}"


def test_generated_metrics_bring_their_settings() -> None:
    document = {"evaluation": {"metric": "exact_match", "max_new_tokens": 64, "normalize": False, "metrics": []}}
    facts = RunFacts(metric="exact_match", task=TaskFacts(document=document), inputs=InputFacts(evaluation_rows=64))
    assert evaluation_settings(facts) == {
        "metric": "exact_match",
        "validation rows, during training": 64,
        "max_new_tokens": 64,
        "normalize": False,
    }


def test_a_record_says_what_it_has() -> None:
    facts = RunFacts()
    assert (data_settings(facts), prompt_template(facts), linears_text(facts)) == ({}, None, None)
    assert evaluation_settings(facts) == {"metric": "loss"}
    paths = ("model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj")
    assert linears_text(RunFacts(inputs=InputFacts(target_modules=paths))) == "3 linears: q_proj, v_proj"
