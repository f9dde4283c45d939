"""The example learns from rewards, and its adapter answers as well where PEFT loads it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from cohort.engine.tune import tune
from cohort.models.tokenizer import load_tokenizer
from cohort.runs.reader import RunReader
from cohort.tasks.loading import load_task
from tests.conftest import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "reinforcement"
# the configuration that wins there, and one that learns nothing
SPACE = ["--search.space.learning_rate", "[3e-3, 1e-4]", "--search.space.num_generations", "4"]


def peft_reward(adapter: Path) -> float:
    """Return the share of the test prompts whose answer, by PEFT and transformers, ends in the right number."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model_folder = REPOSITORY / "examples" / "quickstart" / "base_model"
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter).eval()
    tokenizer = load_tokenizer(str(model_folder))
    rows = [json.loads(line) for line in (EXAMPLE / "test.jsonl").read_text().splitlines()]
    hits = 0
    for row in rows:
        prompt = tokenizer(row["prompt"], return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(**prompt, max_new_tokens=16, do_sample=False)
        text = tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        hits += (re.findall(r"\d+", text) or [""])[-1] == row["answer"]
    return hits / len(rows)


@pytest.mark.slow
def test_the_reward_at_least_triples_and_peft_gives_the_same_answers(tmp_path: Path) -> None:
    tune(load_task(EXAMPLE / "task.yaml", [*SPACE, "--search.space.beta", "0.0"]), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts, steps = reader.facts(), reader.log.steps()
    assert facts.test is not None
    assert facts.test.base is not None
    first = next(step.metrics["reward"] for step in steps if step.trial_id == facts.best_trial_id)
    found, of_base = facts.test.winner.values["reward"], facts.test.base.values["reward"]
    assert found.value >= 3 * max(first, of_base.value)
    assert found.value > 0.9
    # logits differ by rounding, so that a tie may fall the other way
    assert peft_reward(tmp_path / "run" / "best") == pytest.approx(found.value, abs=0.03)
