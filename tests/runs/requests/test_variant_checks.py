"""What a person adds to a run must be an adapter: variants that exclude each other are refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.runs.fact_groups import InputFacts
from cohort.runs.facts import RunFacts
from cohort.runs.requests.variant_checks import variant_refusals
from cohort.tasks.loading import task_from_mapping

FACTS = RunFacts(inputs=InputFacts(adapted_shapes={"q_proj": (32, 16, 2)}))


def test_whole_modules_exclude_what_steps_or_starts_otherwise(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "model").mkdir()
    lora = {"modules_to_save": ["embed_tokens"], "lora_dropout": 0.0}
    data = {"model_name_or_path": "model", "dataset": {"train": "rows.jsonl"}, "lora": lora}
    task = task_from_mapping(data, base_directory=tmp_path)
    for values, found in (
        ({"optim": "muon"}, "muon"),
        ({"loraplus_lr_ratio": 4.0}, "loraplus_lr_ratio with modules_to_save"),
        ({"use_vera": True}, "modules_to_save with use_vera"),
        ({"init_lora_weights": "olora"}, "modules_to_save with init_lora_weights olora"),
    ):
        (problem,) = variant_refusals({"r": 4, **values}, task=task, facts=FACTS)
        assert found in problem.found
    assert not list(variant_refusals({"r": 4, "use_dora": True, "optim": "lion"}, task=task, facts=FACTS))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"r": 4}, None),
        ({"r": 32, "use_vera": True}, None),
        ({"r": 33, "use_vera": True}, "33 with use_vera"),
        ({"r": 4, "use_vera": True, "use_dora": True}, "use_vera with use_dora"),
        ({"r": 4, "use_vera": True, "loraplus_lr_ratio": 4.0}, "trains neither A nor B"),
        ({"r": 4, "use_dora": True, "optim": "muon"}, "muon, which steps matrices, with use_dora"),
        ({"r": 4, "init_lora_weights": "pissa", "lora_dropout": 0.1}, "pissa with lora_dropout"),
        # said by the check of blocks
        ({"r": 5, "nblocks": 2}, None),
    ],
)
def test_what_no_adapter_can_be_is_refused(tmp_path: Path, values: dict[str, Any], found: str | None) -> None:
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "model").mkdir()
    data = {"model_name_or_path": "model", "dataset": {"train": "rows.jsonl"}}
    task = task_from_mapping(data, base_directory=tmp_path)
    problems = [problem.found for problem in variant_refusals(values, task=task, facts=FACTS)]
    assert len(problems) == (found is not None)
    assert found is None or found in problems[0]


def test_a_trial_keeps_what_the_adapter_that_it_begins_with_has(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    for name in ("model", "start"):
        (tmp_path / name).mkdir()
    (tmp_path / "start" / "adapter_config.json").touch()
    lora = {"r": 4, "lora_alpha": "2r", "adapter_name_or_path": "start"}
    data = {"model_name_or_path": "model", "dataset": {"train": "rows.jsonl"}, "lora": lora}
    task = task_from_mapping(data, base_directory=tmp_path)
    assert not list(variant_refusals({"r": 4, "learning_rate": 0.1}, task=task, facts=FACTS))
    found = [str(problem.where) for problem in variant_refusals({"r": 8, "lora_alpha": 8}, task=task, facts=FACTS)]
    assert found == ["--r"]
