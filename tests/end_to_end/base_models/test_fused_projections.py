"""A sweep on a model whose q, k and v are one linear: trained, answered, resumed, exported and merged as PEFT does."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

from cohort.engine.tune import resume, tune
from tests.cli.command import cohort
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


def test_a_sweep_on_phi3_ends_in_an_adapter_that_peft_loads_and_merges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = write_inputs(tmp_path / "inputs")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    rotary = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    config = transformers.Phi3Config(
        **sizes,
        num_key_value_heads=2,
        vocab_size=512,
        pad_token_id=0,
        eos_token_id=1,
        rope_parameters=rotary,
        sliding_window=24,
    )
    model = tmp_path / "model"
    transformers.Phi3ForCausalLM(config).save_pretrained(model)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(inputs / "model" / file, model / file)
    run = tmp_path / "run"
    task = tiny_task(
        inputs,
        model_name_or_path=str(model),
        search={"sampler": "grid", "space": {"r": [2, 4]}},
        lora={"target_modules": "all-linear"},
        training={"max_steps": 4, "learning_rate": 0.02},
        evaluation={"metrics": ["token_f1"], "max_new_tokens": 3},
    )
    tune(task, run)
    resume(run)
    with (run / "results.csv").open() as table:
        assert all(row["eval_token_f1"] for row in csv.DictReader(table))
    saved = json.loads((run / "best" / "adapter_config.json").read_text())
    assert sorted(saved["target_modules"]) == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    code, _, shown = cohort(capsys, "export", run, "--to", "merged", "-o", tmp_path / "merged")
    assert code == 0, shown
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, run / "best").merge_and_unload().state_dict()
    ours = load_file(tmp_path / "merged" / "model.safetensors")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    assert (ours[name] - load_file(model / "model.safetensors")[name]).abs().max() > 1e-4
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, merged[key], rtol=1e-5, atol=1e-6)
