"""The contract: where the bodies of its verbs stand, and what a new verb costs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.ranks.calls import is_verb
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.remote_executor import RemoteExecutor
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.tensor.sharded_executor import ShardedExecutor
from cohort.ranks.training_executor import TrainingExecutor
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.ranks.toy_verb import ToySetup, add_verb, local_squares
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=512, evaluation_token_budget=512)
VERBS = [name for name in dir(TrainingExecutor) if is_verb(TrainingExecutor, name)]
MEMBERS = (LocalExecutor, ReplicatedExecutor, GroupedExecutor, StagedExecutor, ShardedExecutor)
# what ranks have to do otherwise than the local executor; a new verb has no line here unless its ranks do, too
OWN_BODIES = {
    "lower_token_budgets": {GroupedExecutor},
    "lower_kept_tokens": {GroupedExecutor},
    "load": {ReplicatedExecutor, GroupedExecutor, StagedExecutor, ShardedExecutor},
    "drop": {RemoteExecutor, StagedExecutor, ShardedExecutor},
    "state": {GroupedExecutor},
    "weights": {GroupedExecutor},
    "step": {ReplicatedExecutor, GroupedExecutor, StagedExecutor},
    "run": {ReplicatedExecutor, GroupedExecutor, StagedExecutor},
    "evaluate": {StagedExecutor},
    "evaluate_base": {StagedExecutor},
    "generate": {StagedExecutor},
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_one_local_body_and_others_only_where_ranks_differ(verb: str) -> None:
    assert verb in vars(LocalExecutor) or verb in vars(Executor)
    own = {kind for kind in (*MEMBERS[1:], RemoteExecutor) if verb in vars(kind)}
    assert own == OWN_BODIES.get(verb, set())


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("verb", VERBS)
def test_bodies_take_the_same_arguments_with_the_same_defaults(member: type, verb: str) -> None:
    # a call travels by the names of its arguments, and must not mean something else on several GPUs
    def parameters(function: Any) -> list[tuple[str, object, object]]:
        return [(name, own.kind, own.default) for name, own in inspect.signature(function).parameters.items()]

    assert parameters(getattr(member, verb)) == parameters(getattr(TrainingExecutor, verb))


@pytest.fixture
def new_verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    add_verb()
    yield
    del TrainingExecutor.squares, LocalExecutor.squares  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", [None, PipelineGroup(cuts=(0, 1, 2))], ids=["replicated", "grouped"])
@pytest.mark.usefixtures("new_verb")
def test_a_new_verb_reaches_all_ranks_with_nothing_else_written(tmp_path: Path, group: PipelineGroup | None) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32")
    setup = ToySetup(
        rank=0,
        model_directory=str(tmp_path),
        device="cpu",
        dtype="float32",
        target_linears=decoder.linears,
        settings=SIZES,
        memory_limit_bytes=None,
        train_rows=random_rows(4),
        threads=1,
        group=group,
    )
    executor: Any = start_ranks(setup, num_ranks=2, decoder=None if group else decoder)
    try:
        for trial_id in range(2):
            executor.load(
                TrialSpec(
                    trial_id=trial_id,
                    seed=trial_id,
                    adapter=AdapterSpec(r=4, lora_alpha=8.0),
                    learning_rate=1e-2,
                    batch_size=1,
                    num_steps=3,
                )
            )
        executor.step()
        found = executor.squares((0, 1))
        assert found == {key: pytest.approx(local_squares(executor, [key])[key], rel=1e-12) for key in range(2)}
        assert all(work.evaluate_seconds > 0 for work in executor.work)
    finally:
        executor.close()
