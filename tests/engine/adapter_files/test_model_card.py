"""Model cards load at the hub, and say where the adapter is from."""

from __future__ import annotations

from pathlib import Path

from cohort.engine.adapter_files.model_card import render_model_card
from cohort.runs.facts import InputFacts, RunPlaces, TaskFacts
from cohort.runs.results import read_results
from tests.runs.small_run import write_small_run


def test_the_model_card_can_be_loaded_by_the_hub(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "run")
    store.set_facts(inputs=InputFacts(data_hash="ab12"), task=TaskFacts(training={"weight_decay": 0.01}))
    card = render_model_card(read_results(store.reader), trial_id=1)
    head, front, body = card.split("---\n", 2)
    assert head == ""
    assert "base_model: meta-llama/Llama-3.2-1B\n" in front
    assert "library_name: peft\n" in front
    assert "| validation loss | 1.25 |" in body
    assert "| learning_rate | 1e-05 |" in body
    assert "| weight_decay | 0.01 |" in body
    assert "| data hash | ab12 |" in body
    # 24 is no value of that option; 32 is the next
    assert "--max-lora-rank 32" in body


def test_a_local_base_model_stays_out_of_the_front_matter(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "run")
    store.set_facts(places=RunPlaces(base_model=str(tmp_path)))
    card = render_model_card(read_results(store.reader), trial_id=0)
    assert "base_model" not in card.split("---\n", 2)[1]
    assert f'from_pretrained("{tmp_path}")' in card
