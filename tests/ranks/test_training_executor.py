"""What the engine asks of executors is what they have: one rank's, and several ranks'."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from cohort.models.weights import load_decoder
from cohort.ranks.commands import ServedExecutor
from cohort.ranks.group_executor import GroupExecutor
from cohort.ranks.rank_executor import RankExecutor
from cohort.ranks.replicas import ReplicaExecutor
from cohort.ranks.training_executor import TrainingExecutor
from cohort.training.executor_settings import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

# its own and what it shares with the executors that ranks serve
DECLARED = {**vars(ServedExecutor), **vars(TrainingExecutor)}
PUBLIC = {name: value for name, value in DECLARED.items() if not name.startswith("_")}
METHODS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
PROPERTIES = [name for name, value in PUBLIC.items() if isinstance(value, property)]
SIZES = ExecutorSettings(num_slots=2, num_rank_rows=16, token_budget=512, evaluation_token_budget=512)


def _kinds(function: Any) -> dict[str, Any]:
    return {name: (own.kind, own.default) for name, own in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("executor", [RankExecutor, ReplicaExecutor, GroupExecutor])
@pytest.mark.parametrize("name", METHODS)
def test_methods_take_the_same_arguments_with_the_same_defaults(executor: type, name: str) -> None:
    # a call of the engine must not mean something else on several GPUs
    expected, found = _kinds(METHODS[name]), _kinds(getattr(executor, name))
    assert {key: found[key] for key in expected} == expected
    required = [key for key, (_, default) in found.items() if default is inspect.Parameter.empty]
    assert set(required) <= set(expected)


def test_each_has_every_property(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32")
    alone = RankExecutor(decoder, target_linears=decoder.linears, train_rows=random_rows(4), settings=SIZES)
    several: TrainingExecutor = ReplicaExecutor(alone, [])
    for name in PROPERTIES:
        assert getattr(alone, name) == getattr(several, name)
    assert {"num_ranks", "bank_bytes", "memory", "token_budgets", "resident"} <= set(PROPERTIES)
