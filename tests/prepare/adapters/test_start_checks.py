"""What the adapter that trials begin with must have in common with the task, and what does not go with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem
from cohort.prepare.adapters.adapter_specs import adapter_spec
from cohort.prepare.adapters.start_checks import read_start, start_notes
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.tasks.loading import TaskFile, task_from_mapping
from cohort.tasks.trial_values import default_values
from cohort.training.client_training.client_models import ModelState

LINEARS = {"model.layers.0.self_attn.q_proj": (6, 4), "model.layers.0.mlp.down_proj": (8, 6)}
FITTING = {"r": 2, "lora_alpha": 4}
GRPO: dict[str, Any] = {"objective": {"type": "grpo", "beta": 0.0}, "rewards": ["exact_match"]}


def write_adapter(folder: Path, *, linears: dict[str, tuple[int, int]] = LINEARS, **values: Any) -> Path:
    spec = AdapterSpec(**{"r": 2, "lora_alpha": 4.0, **values})
    layout = AdapterLayout(linears)
    folder.mkdir(exist_ok=True)
    config = adapter_config(spec, base_model="elsewhere", target_modules=list(linears))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = torch.arange(float(spec.num_rows * layout.width)).reshape(spec.num_rows, layout.width)
    (folder / "adapter_model.safetensors").write_bytes(serialised_weights(layout, spec, weights))
    return folder


def task_of(folder: Path, lora: dict[str, Any], **sections: Any) -> TaskFile:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "rows.jsonl").touch()
    data = {"model_name_or_path": "model", "dataset": {"train": "rows.jsonl"}, "search": {"space": {}}, **sections}
    return task_from_mapping({**data, "lora": {"adapter_name_or_path": "start", **lora}}, base_directory=folder)


def problems_of(folder: Path, lora: dict[str, Any], **sections: Any) -> list[Problem]:
    task = task_of(folder, lora, **sections)
    return read_start(task, linears=LINEARS, model_directory=folder / "model")[1]


def test_a_fitting_adapter_is_what_trials_begin_with(tmp_path: Path) -> None:
    write_adapter(tmp_path / "start")
    # a multiple of r that is the adapter's own
    task = task_of(tmp_path, {"r": 2, "lora_alpha": "2r"}, search={"space": {"r": [2]}})
    start, problems = read_start(task, linears=LINEARS, model_directory=tmp_path / "model")
    assert problems == []
    assert start is not None
    assert (start.directory, start.sha256) == (str(tmp_path / "start"), adapter_digest(tmp_path / "start"))
    assert adapter_spec(task, default_values(task), start=start).start == start
    (note,) = start_notes(start)
    assert note == f"every trial begins with the weights of {tmp_path / 'start'} (SHA-256 {start.sha256[:12]})"
    # what a condition of the search space could let through is refused where the trial is made
    for values in ({"r": 4}, {"lora_alpha": 8}, {"use_rslora": True}, {"use_dora": True}):
        with pytest.raises(InputError, match=r"lora\.adapter_name_or_path.*with a"):
            adapter_spec(task, {**default_values(task), **values}, start=start)


@pytest.mark.parametrize(
    ("lora", "sections", "where", "found"),
    [
        ({"r": 4}, {}, "lora.r", "r: 4 with"),
        ({}, {"search": {"space": {"r": [2, 8]}}}, "search.space.r", "r: 8 with"),
        ({}, {"search": {"space": {"r": {"min": 2, "max": 9, "step": 7}}}}, "search.space.r", "r: 9 with"),
        ({"lora_alpha": 16}, {}, "lora.lora_alpha", "lora_alpha: 16"),
        ({"lora_alpha": "4r"}, {}, "lora.lora_alpha", "lora_alpha: 8 with"),
        ({}, {"search": {"space": {"lora_alpha": ["2r", "4r"]}}}, "search.space.lora_alpha", "lora_alpha: 8 with"),
        ({}, {"search": {"space": {"lora_alpha": [4, 32]}}}, "search.space.lora_alpha", "lora_alpha: 32 with"),
        ({"use_rslora": True}, {}, "lora.use_rslora", "use_rslora: true with"),
        ({"use_dora": True}, {}, "lora.use_dora", "use_dora: true"),
        ({"use_vera": True}, {}, "lora.use_vera", "use_vera: true"),
        ({}, {"search": {"space": {"use_dora": [False, True]}}}, "search.space.use_dora", "use_dora: true"),
        ({"use_bdlora": {"nblocks": 2}}, {}, "lora.use_bdlora", "use_bdlora with"),
        ({"init_lora_weights": "pissa"}, {}, "lora.init_lora_weights", "init_lora_weights: pissa"),
        ({"rank_pattern": {"q_proj": 1}}, {}, "lora.rank_pattern", "rank_pattern with"),
        ({"modules_to_save": ["lm_head"]}, {}, "lora.modules_to_save", "modules_to_save with"),
        ({"target_parameters": ["experts.down"]}, {}, "lora.target_parameters", "target_parameters with"),
        ({}, {"objective": "dpo"}, "objective", "dpo with adapter_name_or_path, where the reference is the base"),
        ({}, {"objective": "kto"}, "objective", "kto with adapter_name_or_path"),
        ({"lora_dropout": 0.0}, {**GRPO, "objective": {"type": "grpo", "beta": 0.1}}, "objective", "grpo and beta 0.1"),
        (
            {"lora_dropout": 0.0},
            {**GRPO, "search": {"space": {"beta": [0.0, 0.2]}}},
            "search.space.beta",
            "grpo and beta 0.2",
        ),
        ({"lora_dropout": 0.0}, GRPO, None, ""),
        ({}, {"objective": {"type": "dpo", "reference_adapter": "start"}}, None, ""),
        ({}, {"objective": "orpo"}, None, ""),
    ],
)
def test_what_differs_or_does_not_go_together(
    tmp_path: Path, lora: dict[str, Any], sections: dict[str, Any], where: str | None, found: str
) -> None:
    write_adapter(tmp_path / "start")
    problems = problems_of(tmp_path, {**FITTING, **lora}, **sections)
    assert [problem.where.key for problem in problems] == ([] if where is None else [tuple(where.split("."))])
    assert all(problem.found.startswith(found) for problem in problems)


@pytest.mark.parametrize(
    ("written", "where", "found"),
    [
        ({"use_dora": True}, "lora.adapter_name_or_path", "an adapter with use_dora"),
        ({"rank_pattern": (("q_proj", 1),)}, "lora.adapter_name_or_path", "an adapter with rank_pattern"),
        (
            {"linears": {"model.layers.0.self_attn.q_proj": (6, 4)}},
            "lora.target_modules",
            "model.layers.0.mlp.down_proj, which the task adapts and the adapter does not",
        ),
        (
            {"linears": {**LINEARS, "model.layers.0.self_attn.k_proj": (6, 4)}},
            "lora.target_modules",
            "model.layers.0.self_attn.k_proj, which the adapter adapts and the task does not",
        ),
        (
            {"linears": dict.fromkeys(LINEARS, (10, 4))},
            "lora.adapter_name_or_path",
            "A (2, 10) and B (4, 2) of model.layers.0.mlp.down_proj",
        ),
    ],
)
def test_adapters_that_do_not_fit(tmp_path: Path, written: dict[str, Any], where: str, found: str) -> None:
    write_adapter(tmp_path / "start", **written)
    (problem,) = problems_of(tmp_path, FITTING)
    assert (problem.where.key, problem.hint != "") == (tuple(where.split(".")), True)
    assert problem.found.startswith(found)


def test_a_directory_that_is_missing_or_holds_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lora\.adapter_name_or_path: found 'start', which does not exist"):
        task_of(tmp_path, FITTING)
    (tmp_path / "start").mkdir()
    with pytest.raises(InputError, match=r"found 'start', a directory without adapter_config\.json"):
        task_of(tmp_path, FITTING)
    (tmp_path / "start" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    (problem,) = problems_of(tmp_path, FITTING)
    assert problem.found.endswith("adapter_model.safetensors: no such file")
    write_adapter(tmp_path / "start")
    (tmp_path / "start" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    (problem,) = problems_of(tmp_path, FITTING)
    assert "peft_type 'IA3'" in problem.found


def test_a_checkpoint_of_a_tinker_server_is_accepted(tmp_path: Path) -> None:
    layout, spec = AdapterLayout(LINEARS), AdapterSpec(r=2, lora_alpha=4.0)
    state = ModelState(adapter=AdapterState(weights=torch.ones(2, layout.width)))
    store = CheckpointStore(tmp_path / "tinker", base_model="elsewhere", layout=layout)
    uri = store.save("s:train:0", "weights", "one", spec=spec, state=state, about={}, ttl_seconds=None)
    found = store.find(uri, asker="").folder
    task = task_of(tmp_path, {**FITTING, "adapter_name_or_path": str(found)})
    start, problems = read_start(task, linears=LINEARS, model_directory=tmp_path / "model")
    assert (start is not None, problems) == (True, [])
