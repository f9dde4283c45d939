"""A sweep on a quantised base model: it resumes bit for bit, and its adapter belongs to the base model as published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.sweeps.adapters_on_bases import here_loss, peft_loss, published_base, quantised_base
from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.core.errors import InputError
from cohort.engine.session import Session
from cohort.engine.tune import RunOptions, resume, tune
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weights import load_decoder
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs
from tests.training.small_models import random_rows

FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)
OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=40)
SHORT: dict[str, Any] = {"training": {"max_steps": 4}, "search": {"space": {"learning_rate": [1e-2, 3e-2], "r": [4]}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_stopped_sweep_goes_on_bit_for_bit(folder: Path, tmp_path: Path, name: str) -> None:
    task = tiny_task(folder, quantization=name, **SHORT)
    tune(task, tmp_path / "whole", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "stopped", options=OPTIONS, watcher=Interrupting(5), clock=TickingClock())
    resume(tmp_path / "stopped", options=OPTIONS)
    assert outcome_of(tmp_path / "stopped") == outcome_of(tmp_path / "whole")
    with RunReader.open(tmp_path / "whole" / "run.db") as reader:
        facts = reader.facts()
    assert facts.machine.precision == f"base model (float32, {name} weights), float32 adapters"
    for page in ("best/README.md", "report.html"):
        assert f"linear layers in {name}" in (tmp_path / "whole" / page).read_text()
    is_worth_the_same_in_peft(folder / "model", tmp_path / "whole" / "best", name)
    if name == FORMATS[0]:
        leaves_the_base_model_as_it_was(folder, tmp_path / "whole")


def is_worth_the_same_in_peft(model: Path, best: Path, name: str) -> None:
    """PEFT loads the adapter on the published base and on the quantised one, with the losses that it has here."""
    rows = random_rows(6, seed=5)
    bases = {"none": published_base(model), name: quantised_base(model, name)}
    theirs, ours = {}, {}
    for key, base in bases.items():
        theirs[key], ours[key] = peft_loss(base, best, rows), here_loss(model, key, best, rows)
    assert theirs["none"] == pytest.approx(ours["none"], rel=1e-5)
    # fp8 rounds the activations here, too: each of four products a layer by 4 %, at random
    assert theirs[name] == pytest.approx(ours[name], rel=0.02 if name == "fp8" else 1e-5)
    assert theirs[name] != theirs["none"]


def leaves_the_base_model_as_it_was(folder: Path, run: Path) -> None:
    """Merged weights are those of the checkpoint and the adapter's, and PEFT loads it on the plain base model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = export_adapter(run, form=ExportForm.MERGED).path
    before, after = (load_file(path / "model.safetensors") for path in (folder / "model", merged))
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(key.endswith(("q_proj.weight", "v_proj.weight", "down_proj.weight")) for key in changed)
    # a code would be off by up to 6 %, and the adapter moved its weights by far less than all of that
    q_proj = "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(before[q_proj], after[q_proj])
    ids = torch.randint(2, 200, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        theirs = PeftModel.from_pretrained(plain, run / "best").eval()(ids).logits
        in_one = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(theirs, in_one, rtol=0, atol=1e-4)


def test_a_sweep_with_8_bit_states_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, **{**SHORT, "training": {"max_steps": 4, "optim": "adamw_8bit"}})
    tune(task, tmp_path / "whole", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "stopped", options=OPTIONS, watcher=Interrupting(5), clock=TickingClock())
    resume(tmp_path / "stopped", options=OPTIONS)
    assert outcome_of(tmp_path / "stopped") == outcome_of(tmp_path / "whole")


def test_a_session_keeps_the_states_that_it_began_with(folder: Path, tmp_path: Path) -> None:
    session = Session()
    session.submit(tiny_task(folder, **SHORT), tmp_path / "a", name="a")
    with pytest.raises(InputError, match=r"training.optim: found adamw_8bit; the session's tasks have adamw, lion"):
        session.submit(tiny_task(folder, **{**SHORT, "training": {"optim": "adamw_8bit"}}), tmp_path / "b", name="b")


def test_a_session_has_one_format(folder: Path, tmp_path: Path) -> None:
    session = Session()
    session.submit(tiny_task(folder, quantization="fp8", **SHORT), tmp_path / "a", name="a")
    with pytest.raises(InputError, match="quantization: found none, but the other tasks of this session have fp8"):
        session.submit(tiny_task(folder, **SHORT), tmp_path / "b", name="b")


def test_a_gpu_without_the_format_is_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    with pytest.raises(InputError, match=r"fp8 on NVIDIA A100, of compute capability 8.0"):
        load_decoder(folder / "nothing", device="cuda", weight_format="fp8")
