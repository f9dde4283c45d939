"""BD-LoRA in a sweep: mixed with LoRA, stopped and resumed, and in the files that PEFT loads."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from cohort.adapter_files.convert import BlockTarget
from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.models.weights import load_decoder
from cohort.planning.check import check_task
from cohort.prepare.inputs import read_inputs
from cohort.runs.reader import RunReader
from cohort.runs.requests.asking import ask
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from tests.cli.command import cohort
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

SECTIONS: dict[str, Any] = {
    "lora": {"target_modules": "all-linear", "use_bdlora": {"nblocks": 2}},
    "search": {"space": {"learning_rate": [1e-2], "r": [8], "nblocks": [1, 2, 4]}},
    "training": {"max_steps": 5},
    "early_exit": "none",
}
OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    tune(tiny_task(folder, **SECTIONS), folder / "run", options=OPTIONS)
    return folder


def test_a_run_that_was_stopped_ends_with_the_same_adapters(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, **SECTIONS), run, options=OPTIONS, watcher=Interrupting(7), clock=TickingClock())
    for values, found in (({"r": 6, "nblocks": 4}, "does not divide r 6"), ({"r": 5, "nblocks": 5}, "outputs of")):
        with pytest.raises(InputError, match=found):
            ask(run, TrialRequest(kind=RequestKind.ADD, values=values), wait_seconds=0.0)
    resume(run, options=OPTIONS)
    assert outcome_of(run) == outcome_of(folder / "run")


def test_sizes_are_in_the_table(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "run" / "results.csv").read_text().splitlines()))
    found = {(int(row["r"]), int(row["nblocks"])): row for row in rows}
    assert len(found) == 3
    # hidden 32, key-value width 16, 48 within the MLP, two layers
    plain = 2 * (2 * 64 + 2 * 48 + 3 * 80)
    halved = 2 * ((32 + 16 + 16 + 32) + 2 * (32 + 8) + 2 * (32 + 24) + (24 + 32))
    assert int(found[8, 1]["trainable_parameters"]) == 8 * plain
    assert int(found[8, 2]["trainable_parameters"]) == 8 * halved
    assert float(found[8, 2]["rank_of_equal_lora"]) == pytest.approx(8 * halved / plain, abs=1e-4)
    assert float(found[8, 2]["scale"]) == 2.0


@pytest.mark.parametrize("nblocks", [1, 4])
def test_peft_gives_the_logits_of_the_merged_model(folder: Path, tmp_path: Path, nblocks: int) -> None:
    with RunReader.open(folder / "run" / "run.db") as reader:
        trial_id = next(trial.trial_id for trial in reader.trials() if trial.parameters["nblocks"] == nblocks)
    for form in (ExportForm.PEFT, ExportForm.MERGED):
        export_adapter(folder / "run", form=form, trial_id=trial_id, output=tmp_path / form.value)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config.get("use_bdlora", {}).get("nblocks", 1) == nblocks
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        plain = base(ids).logits.clone()
        theirs = PeftModel.from_pretrained(base, tmp_path / "peft").eval()(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(ids).logits
    assert (theirs - plain).abs().max() > 1e-3, "the adapter does something"
    # the same sum in another order, in float32
    torch.testing.assert_close(merged, theirs, rtol=1e-4, atol=1e-5)


def test_check_says_what_blocks_come_to(folder: Path) -> None:
    report = check_task(tiny_task(folder, **SECTIONS))
    assert any(note.startswith("nblocks 2, r 8:") and "BD-LoRA of rank 10" in note for note in report.notes)
    assert any("nblocks 4 does not divide the model's 2 key-value heads" in warning for warning in report.warnings)


def test_blocks_that_do_not_fit_are_refused_before_training(folder: Path) -> None:
    wrong = {"nblocks": 2, "target_modules_bd_a": ["o_prj"]}
    space = {"r": [4, 6], "nblocks": [2, 4, 5]}
    task = tiny_task(folder, lora={"target_modules": "all-linear", "use_bdlora": wrong}, search={"space": space})
    with pytest.raises(InputError) as caught:
        read_inputs(task)
    found = {(str(p.where).rpartition(": ")[2], p.found) for p in caught.value.problems}
    assert ("search.space.nblocks", "4, which does not divide r 6") in found
    assert ("search.space.nblocks", "5, which does not divide r 4") in found
    assert ("lora.use_bdlora.target_modules_bd_a", "'o_prj'") in found
    assert any(place == "lora.use_bdlora.match_strict" and what.startswith("down_proj") for place, what in found)
    assert any(what.startswith("5, which does not divide the") and "16 outputs of k_proj" in what for _, what in found)


def test_constraints_keep_ranks_that_blocks_divide(folder: Path) -> None:
    space = {"r": {"min": 2, "max": 8}, "nblocks": [2]}
    search = {"sampler": "random", "trials": 3, "space": space}
    with pytest.raises(InputError, match="does not divide r 3"):
        read_inputs(tiny_task(folder, search=search))
    inputs = read_inputs(tiny_task(folder, search={**search, "constraints": ["r % nblocks == 0"]}))
    assert inputs.num_trials == 3


def test_export_as_lora_computes_the_same(folder: Path, tmp_path: Path) -> None:
    with RunReader.open(folder / "run" / "run.db") as reader:
        trial_id = next(trial.trial_id for trial in reader.trials() if trial.parameters["nblocks"] == 2)
    dense = export_adapter(folder / "run", form=ExportForm.LORA, trial_id=trial_id, output=tmp_path / "lora")
    assert dense.conversion is not None
    export_adapter(folder / "run", form=ExportForm.PEFT, trial_id=trial_id, output=tmp_path / "peft")
    assert "use_bdlora" not in json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert "cohort export RUN_DIR --to lora" in (tmp_path / "peft" / "README.md").read_text()
    torch.testing.assert_close(logits(folder, tmp_path / "lora"), logits(folder, tmp_path / "peft"))
    # neighbouring blocks together are one block; and once dense, n times the rank is exact
    halves = export_adapter(
        folder / "run",
        form=ExportForm.BD,
        trial_id=trial_id,
        output=tmp_path / "bd",
        blocks=BlockTarget(nblocks=2, rank=16, is_swapped=True),
    )
    assert halves.conversion is not None
    assert "the same function" in halves.conversion
    torch.testing.assert_close(logits(folder, tmp_path / "bd"), logits(folder, tmp_path / "peft"), rtol=1e-4, atol=1e-5)


def test_export_as_blocks_says_what_is_lost(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunReader.open(folder / "run" / "run.db") as reader:
        trial_id = next(trial.trial_id for trial in reader.trials() if trial.parameters["nblocks"] == 1)
    out = ["-o", str(tmp_path / "bd"), "--trial", str(trial_id)]
    arguments = ["--to", "bd", "--nblocks", "4", "--whiten", "4", "--distill-steps", "3"]
    code, _, err = cohort(capsys, "export", str(folder / "run"), *out, *arguments)
    assert code == 0, err
    assert "% of the adapter's change is lost on the inputs of its rows" in err
    assert "3 steps of distillation" in err
    config = json.loads((tmp_path / "bd" / "adapter_config.json").read_text())
    # as many parameters as LoRA of rank 8, in ranks that 4 blocks divide
    assert (config["use_bdlora"]["nblocks"], config["r"]) == (4, 12)
    assert torch.isfinite(logits(folder, tmp_path / "bd")).all()


def test_a_conversion_computes_on_the_weights_that_the_run_trained_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = SECTIONS | {"search": {"space": {"learning_rate": [1e-2]}}, "quantization": "int8"}
    tune(tiny_task(folder, **sections), tmp_path / "run", options=OPTIONS)
    formats = []

    def loading(*arguments: Any, **keywords: Any) -> Any:
        formats.append(keywords["weight_format"])
        return load_decoder(*arguments, **keywords)

    monkeypatch.setattr("cohort.adapter_files.convert.load_decoder", loading)
    blocks = BlockTarget(nblocks=4, whiten_rows=2, distill_steps=1)
    found = export_adapter(tmp_path / "run", form=ExportForm.BD, output=tmp_path / "bd", blocks=blocks)
    assert formats == ["int8"]
    assert found.conversion is not None
    assert "1 step of distillation" in found.conversion


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--to", "bd"), "no --nblocks"),
        (("--to", "lora", "--nblocks", "2"), "--nblocks with --to lora"),
        (("--to", "bd", "--nblocks", "2", "--whiten", "9999"), "rows, those that the run trains on"),
        (("--to", "bd", "--nblocks", "5"), "5, which does not divide"),
        (("--to", "bd", "--nblocks", "2", "--rank", "7"), "2, which does not divide r 7"),
        (("--to", "bd", "--nblocks", "2", "--rank", "64"), "at most 16, with which nothing is lost"),
    ],
)
def test_wrong_conversions_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], found: str
) -> None:
    code, _, err = cohort(capsys, "export", str(folder / "run"), "-o", str(tmp_path / "x"), *arguments)
    assert code == 2
    assert found in err
    assert not (tmp_path / "x").exists()


def logits(folder: Path, adapter: Path) -> torch.Tensor:
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = PeftModel.from_pretrained(base, adapter).eval()(torch.arange(2, 40)[None]).logits
    return found
