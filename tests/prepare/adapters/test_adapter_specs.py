"""What a trial's adapter is follows from its hyperparameters and the task, and what excludes each other is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.prepare.adapters.adapter_specs import adapter_spec, largest_adapter, variant_problems
from cohort.tasks.possible_values import possible_values
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

LINEARS = {f"model.layers.0.self_attn.{name}": (8, 4) for name in ("q_proj", "v_proj")}
VALUES: dict[str, Any] = {"r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "use_rslora": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def test_a_record_of_an_earlier_version_has_peft_s_defaults(folder: Path) -> None:
    spec = adapter_spec(tiny_task(folder), VALUES)
    assert (spec.init_lora_weights, spec.rank_pattern) == ("true", ())


def test_patterns_are_the_task_s(folder: Path) -> None:
    task = tiny_task(folder, lora={"rank_pattern": {"v_proj": 3}, "alpha_pattern": {"q_proj": 1}})
    spec = adapter_spec(task, VALUES)
    assert [spec.rank_of(name) for name in LINEARS] == [2, 3]
    assert [spec.alpha_of(name) for name in LINEARS] == [1.0, 4.0]
    assert not list(variant_problems(task, linears=LINEARS))


def test_a_trial_of_values_that_exclude_each_other_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="is not dropped"):
        adapter_spec(tiny_task(folder), {**VALUES, "init_lora_weights": "pissa", "lora_dropout": 0.1})


def test_constraints_may_say_what_goes_together(folder: Path) -> None:
    space = {"init_lora_weights": [True, "pissa"], "lora_dropout": [0.0, 0.1], "r": 2}
    task = tiny_task(folder, search={"space": space})
    (problem,) = variant_problems(task, linears=LINEARS)
    assert "search.space.init_lora_weights" in str(problem.where)
    constraints = ["lora_dropout == 0 or init_lora_weights == 'true'"]
    task = tiny_task(folder, search={"space": space, "constraints": constraints})
    assert not list(variant_problems(task, linears=LINEARS))


def test_memory_is_planned_for_the_widest_adapter(folder: Path) -> None:
    space = {
        "init_lora_weights": {"values": [True, "olora"], "when": {"r": [2]}},
        "r": [2, 3],
        "lora_dropout": {"min": 0.0, "max": 0.5},
    }
    task = tiny_task(folder, search={"sampler": "random", "trials": 2, "space": space})
    assert possible_values(task, "lora_dropout") == (0.0, 0.5)
    assert largest_adapter(task, adapter_spec(task, VALUES), r=3).num_rows == 6
