"""The task of a job: numbers are trained with, ``auto`` is searched, Cohort's own keys say more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.jobs.auto_search import auto_space, chosen_hyperparameters, most_epochs
from cohort.service.jobs.job_task import BaseForJobs, JobRows, job_document, require_usable_options
from cohort.service.schema import parse_body

_BASE = BaseForJobs(name="base", path="/models/base", max_length=512, on_cpu=True)


def asked(**keys: Any) -> CreateJob:
    return parse_body(CreateJob, json.dumps({"model": "base", "training_file": "file-a", **keys}).encode())


def document(num_rows: int = 1000, **keys: Any) -> dict[str, Any]:
    rows = JobRows(train=Path("/rows.jsonl"), num_rows=num_rows)
    return job_document(asked(**keys), rows=rows, base=_BASE, seed=5)


def test_numbers_are_trained_with() -> None:
    found = document(hyperparameters={"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5})
    assert found["training"] == {"seed": 5, "num_train_epochs": 2, "batch_size": 8, "learning_rate": 1e-4}
    assert found["search"] == {"space": {}}
    assert found["early_exit"] == "none"
    assert (found["model_name_or_path"], found["num_gpus"], found["objective"]) == ("/models/base", 0, "sft")


def test_auto_is_searched() -> None:
    found = document()
    assert found["search"]["space"] == {
        "learning_rate": [5e-5, 2e-4, 5e-4, 1e-3, 3e-3, 1e-2],
        "batch_size": [4, 16],
    }
    assert found["training"] == {"seed": 5, "num_train_epochs": 5}
    assert "early_exit" not in found
    of_pairs = document(method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}})
    assert of_pairs["objective"] == {"type": "dpo", "beta": 0.2}
    assert "beta" not in of_pairs["search"]["space"]
    assert document(method={"type": "dpo"})["search"]["space"]["beta"] == [0.05, 0.1, 0.3]


@pytest.mark.parametrize(("num_rows", "sizes"), [(3, [1]), (16, [4]), (64, [4, 16])])
def test_few_rows_are_not_one_batch(num_rows: int, sizes: list[int]) -> None:
    assert auto_space(asked().asked, method="supervised", num_rows=num_rows)["batch_size"] == sizes


@pytest.mark.parametrize(("num_rows", "epochs"), [(1, 10), (200, 10), (201, 5), (2000, 5), (50_000, 3), (50_001, 1)])
def test_more_rows_need_fewer_passes(num_rows: int, epochs: int) -> None:
    assert most_epochs(num_rows) == epochs


def test_own_keys_take_the_place_of_those_of_auto() -> None:
    options = {
        "search_space": {"r": [4, 8], "learning_rate": [1e-3]},
        "metric": "exact_match",
        "lora": {"lora_alpha": "2r"},
        "training": {"batch_size": 2},
        "trials": 3,
        "sampler": "random",
        "early_exit": {"rule": "patterns"},
    }
    for found in (document(cohort=options), document(metadata={"cohort": json.dumps(options)})):
        assert found["search"] == {
            "space": {"r": [4, 8], "learning_rate": [1e-3]},
            "trials": 3,
            "sampler": "random",
        }
        assert found["training"]["batch_size"] == 2
        assert found["evaluation"]["metric"] == "exact_match"
        assert found["lora"] == {"lora_alpha": "2r"}


def test_the_winner_is_told_in_the_words_of_the_api() -> None:
    trial = {"learning_rate": 3e-3, "batch_size": 4, "r": 16}
    found = chosen_hyperparameters(asked().asked, method="supervised", trial=trial, epochs=1.2)
    assert found == {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 15.0}


@pytest.mark.parametrize(
    "options",
    [
        {"metric": "module:function"},
        {"evaluation": {"metrics": ["/tmp/x.py:f"]}},
        {"lora": {"adapter_name_or_path": "/somewhere"}},
        {"dataset": {"chat_template": "/etc/passwd"}},
    ],
)
def test_paths_and_code_are_the_servers(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"Remove the key|no client's code"):
        require_usable_options(asked(cohort=options))
