"""A model card says where an adapter is from and how to load it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cohort.adapter_files.model_card import render_model_card
from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from cohort.runs.records import JsonValue
from cohort.runs.results.results import RunResults, read_results
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    folder = write_inputs(tmp_path_factory.mktemp("card"))
    tune(tiny_task(folder), folder / "run")
    with RunReader.open(folder / "run" / "run.db") as reader:
        return read_results(reader)


def test_a_card_has_outcome_hyperparameters_and_loading(results: RunResults) -> None:
    best = results.ranked[0].trial
    card = render_model_card(results, trial_id=best.trial_id)
    front = card.partition("---\n")[2].partition("---\n")[0]
    assert "library_name: peft" in front
    # the hub refuses a card whose base model is a path
    assert "base_model:" not in front
    assert f"the result of trial {best.trial_id} in a sweep of {len(results.ranked)}" in card
    assert f"| learning_rate | {best.parameters['learning_rate']:.6g} |" in card
    assert "PeftModel.from_pretrained" in card
    # the smallest value vLLM takes that holds the rank
    assert "--max-lora-rank 8 " in card
    assert "| model hash |" in card


def test_the_hyperparameters_are_those_in_force_and_the_trials_own_come_first(results: RunResults) -> None:
    entry = results.ranked[0].trial
    shared: dict[str, JsonValue] = {"weight_decay": 0.01, "num_train_epochs": 3.0}
    for steps in (None, 8):
        training = shared if steps is None else {**shared, "max_steps": steps}
        facts = replace(results.facts, task=replace(results.facts.task, training=training))
        card = render_model_card(replace(results, facts=facts), trial_id=entry.trial_id)
        names = re.findall(r"^\| (\w+) \|", card.partition("## Hyperparameters")[2].partition("##")[0], re.MULTILINE)
        assert names[1 : 1 + len(entry.parameters)] == list(entry.parameters)
        # the steps override the epochs
        assert ("num_train_epochs" in names, "max_steps" in names) == (steps is None, steps is not None)


def test_a_trial_that_does_not_exist_has_no_card(results: RunResults) -> None:
    with pytest.raises(KeyError):
        render_model_card(results, trial_id=99)


def test_a_card_says_what_was_trained_on_and_how_it_was_measured(results: RunResults) -> None:
    card = render_model_card(results, trial_id=results.ranked[0].trial.trial_id)
    inputs = results.facts.inputs
    assert inputs.train_input is not None
    assert f"| hash of the train files | {inputs.train_input.files_hash} |" in card
    assert f"| training rows | {inputs.num_train_rows} |" in card
    assert re.search(r"\| train \| .*\.jsonl \|", card)
    assert f"| validation rows, during training | {inputs.evaluation_rows} |" in card
    assert "| metric | loss |" in card
    assert re.search(r"\| adapted \| \d+ linears: .*q_proj", card)
    # nothing is generated for a loss
    assert "max_new_tokens" not in card


def test_a_prompt_template_stands_in_the_card_as_it_was_written(results: RunResults) -> None:
    template = "Write ```code``` for {task}\nAnswer:"
    document = {**(results.facts.task.document or {}), "dataset": {"train": "a.jsonl", "prompt_template": template}}
    facts = replace(results.facts, task=replace(results.facts.task, document=document))
    card = render_model_card(replace(results, facts=facts), trial_id=results.ranked[0].trial.trial_id)
    assert f"````text\n{template}\n````" in card


def test_a_model_of_the_hub_at_a_revision_is_loaded_at_it(results: RunResults) -> None:
    facts = replace(results.facts, places=replace(results.facts.places, base_model="me/base@v2"))
    card = render_model_card(replace(results, facts=facts), trial_id=results.ranked[0].trial.trial_id)
    assert "base_model: me/base\n" in card
    assert 'from_pretrained("me/base", revision="v2")' in card
    assert "vllm serve me/base --revision v2 --enable-lora" in card
