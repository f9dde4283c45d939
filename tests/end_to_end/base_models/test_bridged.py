"""A base model that transformers computes, from a task to its results: resumed, in processes, exported and refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.serving.generate import GenerateRequest
from cohort.serving.sampler import Sampling
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs
from tests.models.bridge.architectures import save_tiny

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=60)
# of the tokenizer of tiny tasks
VOCABULARY = 258
SECTIONS: dict[str, Any] = {
    "lora": {"target_modules": "all-linear"},
    "training": {"max_steps": 4},
    # each answer costs as much as a step
    "dataset": {"validation": 0.125},
    "evaluation": {"metric": "exact_match", "max_new_tokens": 2, "max_examples": 2},
    "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [2, 4]}},
}


def write_bridged(folder: Path, name: str) -> Path:
    write_inputs(folder)
    (folder / "model" / "model.safetensors").unlink()
    save_tiny(name, folder / "model", vocabulary=VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with windows, sinks and experts."""
    return write_bridged(tmp_path_factory.mktemp("gpt_oss"), "gpt_oss")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    watcher = Interrupting()
    tune(tiny_task(folder, **SECTIONS), folder / "run", options=OPTIONS, watcher=watcher)
    (folder / "notes.json").write_text(json.dumps(watcher.notes))
    return folder / "run"


def test_the_run_says_what_computes_the_model(folder: Path, run: Path) -> None:
    with RunReader.open(run / "run.db") as reader:
        machine = reader.facts().machine
    assert machine.model is not None
    assert machine.model.startswith("GptOssForCausalLM, by transformers ")
    assert machine.attention == "transformers' own, each sequence by itself"
    notes = json.loads((folder / "notes.json").read_text())
    assert sum(note.startswith("model: GptOssForCausalLM, by transformers") for note in notes) == 1


def test_an_interrupted_run_resumes_bit_for_bit(folder: Path, run: Path, tmp_path: Path) -> None:
    watcher = Interrupting(steps=7)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=OPTIONS, watcher=watcher, clock=TickingClock())
    resume(tmp_path / "run", options=OPTIONS)
    assert outcome_of(tmp_path / "run") == outcome_of(run)


def test_two_processes_give_the_bits_of_one(folder: Path, run: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=replace(OPTIONS, num_ranks=2))
    found, expected = outcome_of(tmp_path / "run"), outcome_of(run)
    assert found["adapters"] == expected["adapters"]
    assert found["steps"] == expected["steps"]


@pytest.mark.parametrize("objective", ["dpo", pytest.param("kto", marks=pytest.mark.slow)])
def test_preferences_are_trained(folder: Path, tmp_path: Path, objective: str) -> None:
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(24)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = tiny_task(
        folder,
        **{
            **SECTIONS,
            "dataset": {"train": "pairs.jsonl", "validation": 0.125},
            "training": {"max_steps": 2},
            "evaluation": {"metric": "reward_accuracy", "max_examples": 2},
            "objective": objective,
        },
    )
    tune(task, tmp_path / "run", options=OPTIONS)
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").stat().st_size > 0


@pytest.mark.parametrize("name", ["gpt_oss", "gpt2"])
def test_merged_and_adapted_give_the_same_logits(folder: Path, run: Path, tmp_path: Path, name: str) -> None:
    if name == "gpt2":
        # weights of linears that stand as [K, N] in the files
        folder = write_bridged(tmp_path / "gpt2", name)
        run = folder / "run"
        tune(tiny_task(folder, **{**SECTIONS, "evaluation": {}}), run, options=OPTIONS)
        config = json.loads((run / "best" / "adapter_config.json").read_text())
        assert config["fan_in_fan_out"] is True
    export_adapter(run, form=ExportForm.MERGED, output=tmp_path / "merged")
    ids = torch.arange(5, 30)[None]
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    with torch.no_grad():
        plain = base(input_ids=ids).logits.clone()
        adapted = PeftModel.from_pretrained(base, run / "best").eval()(input_ids=ids).logits
        found = merged(input_ids=ids).logits
    torch.testing.assert_close(found, adapted, rtol=1e-4, atol=1e-4)
    assert (adapted - plain).abs().max() > 1e-3


def test_a_memory_limit_is_kept_or_refused(folder: Path, tmp_path: Path) -> None:
    limit = {"limit": "2GB", "profile": False}
    # on a CPU every operation of a pass is counted
    few = {"training": {"max_steps": 1}, "evaluation": {}, "search": {"space": {"r": [2]}}}
    tune(tiny_task(folder, **{**SECTIONS, **few}, memory=limit), tmp_path / "run", options=OPTIONS)
    with pytest.raises(InputError, match=r"memory\.limit"):
        tune(tiny_task(folder, **SECTIONS, memory={"limit": "64KiB"}), tmp_path / "refused", options=OPTIONS)


def refusal(folder: Path, **sections: Any) -> str:
    with pytest.raises(InputError) as caught:
        tune(tiny_task(folder, **{**SECTIONS, **sections}), folder / "refused", options=replace(OPTIONS, num_ranks=2))
    shutil.rmtree(folder / "refused", ignore_errors=True)
    return str(caught.value)


def test_what_only_native_families_have_is_refused(folder: Path) -> None:
    by = "GptOssForCausalLM, whose layers transformers computes"
    assert f"tensor with {by}" in refusal(folder, strategy="tensor", num_gpus=0)
    assert f"pipeline with {by}" in refusal(folder, strategy="pipeline")
    assert f"4 with {by}" in refusal(folder, memory={"host_streamed_layers": 4})


def test_a_copy_of_what_has_another_name_is_refused(tmp_path: Path) -> None:
    lora = {"target_modules": "all-linear", "modules_to_save": ["embed_tokens"]}
    said = refusal(write_bridged(tmp_path / "gpt2", "gpt2"), lora=lora)
    assert "embed_tokens with GPT2LMHeadModel" in said
    assert "Write modules_to_save: [lm_head]." in said


def test_an_embedding_and_a_head_of_its_own_resume_merge_and_answer(folder: Path, tmp_path: Path) -> None:
    lora = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    task = tiny_task(folder, **{**SECTIONS, "lora": lora, "search": {"space": {"r": [2, 4]}}})
    tune(task, tmp_path / "whole", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "run", options=OPTIONS, watcher=Interrupting(steps=3), clock=TickingClock())
    resume(tmp_path / "run", options=OPTIONS)
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "whole")
    export_adapter(tmp_path / "run", form=ExportForm.MERGED, output=tmp_path / "merged")
    ids = torch.arange(5, 30)[None]
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    adapted: Any = PeftModel.from_pretrained(base, tmp_path / "run" / "best").eval()
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    run = open_base(RunDirectory.open(tmp_path / "run"))
    model, (adapter, _) = RunModel(run), read_chosen(RunDirectory(tmp_path / "run"), trial_id=None, base=run)
    model.hold([adapter])
    asked = GenerateRequest(prompt_tokens=[5, 6, 7], max_new_tokens=1, slot=model.slots[0])
    (picked, *_) = model.stream([asked], sampling=Sampling())
    with torch.no_grad():
        assert picked.token == int(adapted(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].argmax())


def test_a_target_that_matches_nothing_names_the_nearest(folder: Path) -> None:
    said = refusal(folder, lora={"target_modules": ["q_prj", "experts"]})
    assert "'q_prj'" in said
    assert "Did you mean q_proj" in said
    assert "'experts'" in said
