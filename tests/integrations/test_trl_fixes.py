"""What a refusal of a TRL script tells a user to write can be written, and is accepted."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

import pytest
from peft import LoraConfig

from cohort.core.errors import InputError
from cohort.integrations.trl import trl_keys

trl = pytest.importorskip("trl")

# transformers warns of machines without a GPU
pytestmark = pytest.mark.filterwarnings("ignore")

LORA = LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM")
BASE: dict[str, Any] = {"use_cpu": True, "report_to": "none", "bf16": False}
SAVED = {"eval_strategy": "steps", "save_strategy": "steps"}
REFUSED: list[dict[str, Any]] = [
    {"load_best_model_at_end": True, "metric_for_best_model": "accuracy", **SAVED},
    {"load_best_model_at_end": True, "greater_is_better": True, **SAVED},
    {"packing": True},
    {"neftune_noise_alpha": 5.0},
    {"label_smoothing_factor": 0.1},
    {"optim": "adafactor"},
    {"lr_scheduler_type": "reduce_lr_on_plateau", **SAVED},
    {"warmup_steps": 10},
    {"data_seed": 3},
    {"max_length": None},
    {"dataloader_drop_last": True},
    {"push_to_hub": True},
    {"loss_type": "dft"},
    {"model_init_kwargs": {"dtype": "float32"}},
    {"resume_from_checkpoint": "checkpoint-1"},
    {"eos_token": "<|im_end|>"},
    {"report_to": 3},
]
_ASSIGNMENT = re.compile(r"(\w+)=('[^']*'|None|True|False|-?\d+(?:\.\d+)?)")


def problems_of(directory: str, fields: dict[str, Any]) -> list[Any]:
    config = trl.SFTConfig(output_dir=directory, **BASE | fields)
    try:
        trl_keys(config, LORA, columns=frozenset({"prompt", "completion"}))
    except InputError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize("fields", REFUSED, ids=lambda fields: ",".join(fields))
def test_the_fix_that_is_named_helps(tmp_path: Any, fields: dict[str, Any]) -> None:
    problems = problems_of(str(tmp_path), fields)
    assert problems, f"{fields} is refused"
    fixed = dict(fields)
    for problem in problems:
        written = _ASSIGNMENT.search(problem.hint)
        if written is None:
            # a length has to be chosen, so no value of it can be named
            assert (problem.where.key, problem.hint) == (
                ("max_length",),
                "Write the number of tokens that the longest row needs.",
            )
            fixed["max_length"] = 512
            continue
        fixed[written[1]] = literal_eval(written[2])
    assert problems_of(str(tmp_path), fixed) == []


def test_the_best_model_at_the_end_needs_no_fix(tmp_path: Any) -> None:
    assert problems_of(str(tmp_path), {"load_best_model_at_end": True, **SAVED}) == []
