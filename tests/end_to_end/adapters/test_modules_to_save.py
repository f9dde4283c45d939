"""A sweep whose trials train embedding and head of their own: resumed to the same bits, and PEFT's files both ways."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

import cohort
from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.planning.check import check_task
from cohort.runs.directory import RunDirectory
from cohort.serving.adapter_registry import load_version
from cohort.serving.generate import GenerateRequest
from cohort.serving.sampler import Sampling
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=40)
BOTH = ["embed_tokens", "lm_head"]
# PEFT says of a model with one table that the trained copies are two
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")


@pytest.fixture(scope="module", params=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp(request.param))
    if request.param == "tied":
        config = AutoConfig.from_pretrained(folder / "model", tie_word_embeddings=True)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    task = tiny_task(folder, lora={"modules_to_save": BOTH}, training={"optim": "adamw"})
    tune(task, folder / "undisturbed", options=OPTIONS)
    return folder / "undisturbed"


def model_in(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(5, 25)[None]).logits
    return found


def test_an_interrupted_sweep_goes_on_to_the_same_bits(folder: Path, run: Path) -> None:
    task = tiny_task(folder, lora={"modules_to_save": BOTH}, training={"optim": "adamw"})
    with pytest.raises(KeyboardInterrupt):
        tune(task, folder / "stopped", options=OPTIONS, watcher=Interrupting(19), clock=TickingClock())
    resume(folder / "stopped", options=OPTIONS)
    assert outcome_of(folder / "stopped") == outcome_of(run)


def test_peft_loads_the_best_and_a_merged_model_answers_alike(folder: Path, run: Path, tmp_path: Path) -> None:
    base = model_in(folder / "model")
    model = PeftModel.from_pretrained(copy.deepcopy(base), run / "best")
    assert json.loads((run / "best" / "adapter_config.json").read_text())["modules_to_save"] == BOTH
    own = model.base_model.model.model.embed_tokens.modules_to_save["default"].weight
    assert not torch.equal(own, base.model.embed_tokens.weight)
    expected = logits_of(model)
    exported = export_adapter(run, form=ExportForm.MERGED, output=tmp_path / "merged")
    merged = model_in(exported.path)
    torch.testing.assert_close(logits_of(merged), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(merged.lm_head.weight, merged.model.embed_tokens.weight)


def result_of(run: Path) -> dict[str, Any]:
    """Everything but the order of decisions: with twice the room, other trials warm up first."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


def test_two_processes_give_the_bits_of_one(folder: Path, run: Path) -> None:
    task = tiny_task(folder, lora={"modules_to_save": BOTH}, training={"optim": "adamw"})
    tune(task, folder / "two", options=replace(OPTIONS, num_ranks=2))
    assert result_of(folder / "two") == result_of(run)


def test_a_trial_is_exported_from_its_checkpoint(folder: Path, run: Path, tmp_path: Path) -> None:
    results = cohort.load(run)
    other = next(trial["trial"] for trial in results.trials if trial["trial"] != results.trials[0]["trial"])
    found = export_adapter(run, form=ExportForm.PEFT, trial_id=other, output=tmp_path / "other")
    base = model_in(folder / "model")
    model = PeftModel.from_pretrained(copy.deepcopy(base), found.path)
    assert not torch.equal(
        model.base_model.model.lm_head.modules_to_save["default"].weight, base.model.embed_tokens.weight
    )
    assert "--to merged" in (found.path / "README.md").read_text()
    with pytest.raises(InputError, match="modules_to_save"):
        export_adapter(run, form=ExportForm.LORA, trial_id=other, output=tmp_path / "lora")


def test_a_server_refuses_it_and_names_the_merged_model(folder: Path, run: Path) -> None:
    layout = AdapterLayout(linear_shapes(read_config(folder / "model")))
    with pytest.raises(InputError, match="--to merged"):
        load_version(run / "best", layout=layout, most_rank=64)


def test_answers_are_those_of_peft(folder: Path, run: Path) -> None:
    directory = RunDirectory(run)
    base = open_base(directory, model=None)
    adapter, _ = read_chosen(directory, trial_id=None, base=base)
    model = RunModel(base)
    model.hold([adapter])
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    requests = [
        *(GenerateRequest(prompt_tokens=tokens, max_new_tokens=6, slot=model.slots[0]) for tokens in prompts),
        GenerateRequest(prompt_tokens=prompts[0], max_new_tokens=6),
    ]
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for picked in model.stream(requests, sampling=Sampling()):
        if picked.token is not None:
            found[picked.index].append(picked.token)
    plain = model_in(folder / "model")
    tuned = PeftModel.from_pretrained(copy.deepcopy(plain), run / "best")
    for index, (tokens, expected) in enumerate([(prompts[0], tuned), (prompts[1], tuned), (prompts[0], plain)]):
        sequence = list(tokens)
        for token in found[index]:
            with torch.no_grad():
                likeliest = int(expected(torch.tensor([sequence])).logits[0, -1].argmax())
            assert token == likeliest
            sequence.append(token)
    assert found[0] or found[1]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"lora": {"modules_to_save": ["norm"]}}, "norms stay frozen"),
        ({"lora": {"modules_to_save": ["o_proj"]}}, "name it in target_modules"),
        ({"lora": {"modules_to_save": ["wte"]}}, "Write embed_tokens"),
        ({"lora": {"modules_to_save": BOTH}, "training": {"optim": "muon"}}, "muon"),
        ({"lora": {"modules_to_save": BOTH}, "strategy": "tensor", "num_gpus": 2}, "strategy: tensor"),
        ({"lora": {"modules_to_save": BOTH}, "strategy": "pipeline", "num_gpus": 2}, "strategy: pipeline"),
        ({"lora": {"modules_to_save": BOTH}, "training": {"loraplus_lr_ratio": 4}}, "loraplus_lr_ratio"),
        ({"lora": {"modules_to_save": BOTH, "lora_dropout": 0.0, "init_lora_weights": "pissa"}}, "pissa"),
        ({"lora": {"modules_to_save": BOTH, "lora_dropout": 0.0, "use_vera": True, "lora_alpha": 1}}, "use_vera"),
    ],
)
def test_what_no_trial_can_have_is_refused_before_training(
    folder: Path, tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        tune(tiny_task(folder, **sections), tmp_path / "run", options=OPTIONS)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:set in the TRL script and without effect")
def test_peft_s_own_configuration_says_it(folder: Path) -> None:
    trl = pytest.importorskip("trl")
    config = trl.SFTConfig(output_dir="out", max_steps=2, use_cpu=True, bf16=False, report_to="none", max_length=64)
    lora = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head", "model.embed_tokens"])
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    task = cohort.Task.from_trl(config, lora, {"learning_rate": [1e-3]}, dataset=rows, model=folder / "model")
    assert task.file.lora.modules_to_save == tuple(BOTH)


def test_one_of_two_that_share_a_table_is_warned_of(folder: Path) -> None:
    is_tied = AutoConfig.from_pretrained(folder / "model").tie_word_embeddings
    for names, told in ((["embed_tokens"], is_tied), (["lm_head"], is_tied), (BOTH, False)):
        found = check_task(tiny_task(folder, lora={"modules_to_save": names})).warnings
        assert any("keeps the base model's rows" in warning for warning in found) is told
