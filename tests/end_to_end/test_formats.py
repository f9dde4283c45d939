"""Every format of rows goes all the way to an adapter, with the metric of generated text where there is a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PAIRS = [(f"{a}+{b}", str(a + b)) for a in range(4) for b in range(4)]

ROWS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in PAIRS],
    "sharegpt": [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in PAIRS],
    "alpaca": [{"instruction": q, "input": "", "output": a} for q, a in PAIRS],
    "prompt_completion": [{"prompt": f"{q}=", "completion": a} for q, a in PAIRS],
    "text": [{"text": f"{q}={a}"} for q, a in PAIRS],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.mark.parametrize("name", ROWS)
def test_a_format_gives_an_adapter(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    # the usual preamble of alpaca rows is longer than this model's context
    template = {"prompt_template": "{instruction}="} if name == "alpaca" else {}
    metric = "loss" if name == "text" else "exact_match"
    task = tiny_task(
        folder,
        dataset={"train": str(tmp_path / "rows.jsonl"), "validation": 0.25, "max_length": 128, **template},
        evaluation={"metric": metric, "max_new_tokens": 4, "max_examples": 4},
        search={"space": {"learning_rate": [1e-3, 1e-2]}},
        training={"max_steps": 4},
    )
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts, evaluations, steps = reader.facts(), reader.log.evaluations(), reader.log.steps()
    assert facts.inputs.is_chat is (name in ("messages", "sharegpt"))
    assert all(("exact_match" in found.metrics) is (metric == "exact_match") for found in evaluations)
    # random weights know nothing: a token of 258 costs about log 258 nats whatever the format
    assert 4 < steps[0].loss < 7
    base = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert PeftModel.from_pretrained(base, tmp_path / "run" / "best").peft_config["default"].r == 16
    served = AutoTokenizer.from_pretrained(tmp_path / "run" / "best")
    assert served.chat_template == TEMPLATE, "training and serving use one template"
