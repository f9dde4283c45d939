"""A sweep over variants of LoRA: interrupted it goes on to the same bits, and what excludes each other is refused."""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

import cohort
from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=40)
LORA: dict[str, Any] = {
    "lora_dropout": 0.0,
    "target_modules": "all-linear",
    "exclude_modules": ["k_proj"],
    "rank_pattern": {"down_proj": 3},
    "alpha_pattern": {r"layers\.0\..*": 5},
}
SPACE: dict[str, Any] = {
    "init_lora_weights": [True, "pissa", "olora"],
    "use_dora": [True, False],
    "loraplus_lr_ratio": 4,
    "optim": {"values": ["lion", "muon"], "when": {"init_lora_weights": ["pissa"]}},
    "learning_rate": 1e-2,
    "r": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def test_a_sweep_over_variants_goes_on_to_the_same_bits(folder: Path) -> None:
    search = {"space": SPACE, "constraints": ["not use_dora or init_lora_weights == 'true'"]}
    task = tiny_task(folder, lora=LORA, search=search, early_exit="none")
    tune(task, folder / "undisturbed", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, folder / "stopped", options=OPTIONS, watcher=Interrupting(19), clock=TickingClock())
    resume(folder / "stopped", options=OPTIONS)
    assert outcome_of(folder / "stopped") == outcome_of(folder / "undisturbed")
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "undisturbed" / "best")
    assert not [name for name, _ in model.named_parameters() if "lora_" in name and "k_proj" in name]


def test_lora_and_vera_trials_share_a_sweep_and_its_bits(folder: Path, tmp_path: Path) -> None:
    space = {
        "use_vera": [True, False],
        "d_initial": {"values": [0.1, 1.0], "when": {"use_vera": [True]}},
        "learning_rate": 3e-2,
        "r": 8,
    }
    task = tiny_task(folder, lora={"lora_alpha": 32, "save_projection": False}, search={"space": space})
    tune(task, tmp_path / "undisturbed", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "stopped", options=OPTIONS, watcher=Interrupting(9), clock=TickingClock())
    resume(tmp_path / "stopped", options=OPTIONS)
    assert outcome_of(tmp_path / "stopped") == outcome_of(tmp_path / "undisturbed")
    results = cohort.load(tmp_path / "undisturbed")
    vera = next(trial["trial"] for trial in results.trials if trial["parameters"]["use_vera"])
    shown = {bool(trial["parameters"]["use_vera"]): set(trial["parameters"]) for trial in results.trials}
    # VeRA reads none
    assert ("lora_alpha" in shown[True], "lora_alpha" in shown[False]) == (False, True)
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokens, logits = torch.arange(5, 25)[None], {}
    for form in (ExportForm.PEFT, ExportForm.LORA, ExportForm.MERGED):
        found = export_adapter(tmp_path / "undisturbed", form=form, trial_id=vera, output=tmp_path / form.value)
        model: Any = None
        if form is ExportForm.MERGED:
            model = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
        else:
            with warnings.catch_warnings():
                # PEFT says that it draws the projections again
                warnings.simplefilter("ignore", UserWarning)
                model = PeftModel.from_pretrained(copy.deepcopy(base), found.path)
        with torch.no_grad():
            logits[form] = model(tokens).logits
    assert not torch.allclose(logits[ExportForm.PEFT], base(tokens).logits, atol=1e-3)
    # rounding of the products in another order alone
    torch.testing.assert_close(logits[ExportForm.LORA], logits[ExportForm.PEFT], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits[ExportForm.MERGED], logits[ExportForm.PEFT], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:set in the TRL script and without effect")
def test_trl_s_own_script_becomes_a_sweep_of_variants(folder: Path, tmp_path: Path) -> None:
    config = trl.SFTConfig(
        output_dir=str(tmp_path / "trl"),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        max_length=64,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    lora = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules="all-linear",
        exclude_modules=["o_proj"],
        rank_pattern={"v_proj": 2},
        use_dora=True,
    )
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    space = {"loraplus_lr_ratio": [1, 4]}
    task = cohort.Task.from_trl(config, lora, space, dataset=rows, model=folder / "model")
    result = cohort.run(task, run_directory=tmp_path / "run")
    assert len(result.trials) == 2
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "run" / "best")
    found = model.peft_config["default"]
    assert (found.use_dora, found.rank_pattern, found.r) == (True, {"v_proj": 2}, 4)
    assert sum("lora_magnitude_vector" in name for name, _ in model.named_parameters()) == 2 * 6


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"lora": {"init_lora_weights": "pissa", "lora_dropout": 0.1}}, "pissa with lora_dropout above 0"),
        ({"search": {"space": {"init_lora_weights": [True, "olora"]}}}, "olora with lora_dropout above 0"),
        (
            {"lora": {"init_lora_weights": "olora", "lora_dropout": 0.0}, "quantization": "fp8"},
            "olora on a base model in fp8",
        ),
        (
            {"lora": {"init_lora_weights": "pissa", "lora_dropout": 0.0}, "quantization": "nf4"},
            "pissa on a base model in nf4",
        ),
        ({"lora": {"use_dora": True, "init_lora_weights": "pissa", "lora_dropout": 0.0}}, "use_dora with init_lora"),
        ({"lora": {"use_dora": True}, "training": {"optim": "muon"}}, "muon, which steps matrices, with use_dora"),
        ({"lora": {"use_dora": True, "use_bdlora": {"nblocks": 2}}}, "use_dora with use_bdlora"),
        ({"lora": {"rank_pattern": {"q_proj": 4}, "use_bdlora": {"nblocks": 2}}}, "rank_pattern with use_bdlora"),
        ({"lora": {"use_vera": True, "use_dora": True}}, "use_vera with use_dora"),
        ({"lora": {"use_vera": True}}, "lora_alpha, which VeRA does not read"),
        ({"lora": {"d_initial": 1.0}}, "d_initial, which LoRA does not read"),
        ({"lora": {"save_projection": False}}, "save_projection: false, which LoRA does not read"),
        ({"search": {"space": {"use_vera": [True, False], "lora_alpha": ["r", "2r"]}}}, "when: {use_vera: .false.}"),
        ({"lora": {"lora_alpha": 32, "use_vera": True, "r": 99}, "search": {"space": {}}}, "r 99 with use_vera"),
        (
            {"lora": {"lora_alpha": 32, "use_vera": True}, "training": {"loraplus_lr_ratio": 4}},
            "trains neither A nor B",
        ),
        ({"lora": {"rank_pattern": {"qproj": 4}}}, "'qproj', which fits no adapted linear"),
        ({"lora": {"exclude_modules": "all"}}, "excludes nothing"),
        ({"lora": {"init_lora_weights": "pissa", "lora_dropout": 0.0, "r": 999}, "search": {"space": {}}}, "999"),
    ],
)
def test_what_no_trial_could_be_is_refused_before_training(
    folder: Path, tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        tune(tiny_task(folder, **sections), tmp_path / "run", options=OPTIONS)
    assert not (tmp_path / "run").exists()
