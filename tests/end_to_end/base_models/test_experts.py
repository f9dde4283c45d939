"""Adapters on the experts of a mixture, from a task to files: resumed, in processes, loaded by PEFT, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.adapters.peft_files.peft_format import read_adapter
from cohort.core.errors import InputError
from cohort.engine.tune import resume, tune
from cohort.serving.adapter_registry import require_shared_modules
from tests.end_to_end.base_models.test_bridged import OPTIONS, write_bridged
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task

PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LORA: dict[str, Any] = {"target_modules": ["q_proj"], "target_parameters": PARAMETERS, "lora_dropout": 0.0}
TASK: dict[str, Any] = {
    "lora": LORA,
    "training": {"max_steps": 4},
    "search": {"space": {"learning_rate": [1e-3, 1e-2]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bridged(tmp_path_factory.mktemp("qwen3_moe"), "qwen3_moe")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    tune(tiny_task(folder, **TASK), folder / "run", options=OPTIONS)
    return folder / "run"


def test_peft_loads_the_best_adapter(folder: Path, run: Path) -> None:
    config = json.loads((run / "best" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj"]
    assert config["target_parameters"] == sorted(PARAMETERS)
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        plain = base(input_ids=ids).logits.clone()
        model = PeftModel.from_pretrained(base, run / "best").eval()
        assert (model(input_ids=ids).logits - plain).abs().max() > 1e-3


def test_an_interrupted_run_resumes_bit_for_bit(folder: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(
            tiny_task(folder, **TASK),
            tmp_path / "run",
            options=OPTIONS,
            watcher=Interrupting(steps=3),
            clock=TickingClock(),
        )
    resume(tmp_path / "run", options=OPTIONS)
    assert outcome_of(tmp_path / "run") == outcome_of(run)


@pytest.mark.parametrize("name", ["qwen3_moe", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_merged_and_adapted_give_the_same_logits(folder: Path, run: Path, tmp_path: Path, name: str) -> None:
    # files have the experts of Qwen3-MoE one by one, and those of gpt-oss stacked with the input's axis first
    if name == "gpt_oss":
        folder = write_bridged(tmp_path / name, name)
        run = folder / "run"
        tune(tiny_task(folder, **TASK), run, options=OPTIONS)
    export_adapter(run, form=ExportForm.MERGED, output=tmp_path / "merged")
    ids = torch.arange(5, 30)[None]
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    with torch.no_grad():
        found = merged(input_ids=ids).logits
        adapted = PeftModel.from_pretrained(base, run / "best").eval()(input_ids=ids).logits
    torch.testing.assert_close(found, adapted, rtol=1e-4, atol=1e-4)


def test_other_forms_are_refused_with_the_reason(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an adapter on experts of Qwen3MoeForCausalLM"):
        export_adapter(run, form=ExportForm.LORA, output=tmp_path / "out")


def test_a_server_says_where_such_an_adapter_goes(run: Path) -> None:
    with pytest.raises(InputError, match=r"adapters on experts .* and 7 more.*export --to merged"):
        require_shared_modules(read_adapter(run / "best"), where="best")


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one(folder: Path, run: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **TASK), tmp_path / "run", options=replace(OPTIONS, num_ranks=2))
    assert outcome_of(tmp_path / "run")["adapters"] == outcome_of(run)["adapters"]


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"lora_dropout": 0.1}, "lora.lora_dropout: found lora_dropout above 0 with target_parameters"),
        ({"use_dora": True}, "lora.use_dora: found use_dora true with target_parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa with target_parameters"),
        ({"target_parameters": ["mlp.experts.up_proj"]}, "Did you mean mlp.experts.gate_up_proj"),
    ],
)
def test_what_experts_do_not_have_is_refused(folder: Path, tmp_path: Path, lora: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        tune(tiny_task(folder, **{**TASK, "lora": {**LORA, **lora}}), tmp_path / "run", options=OPTIONS)
    assert words in str(caught.value)
