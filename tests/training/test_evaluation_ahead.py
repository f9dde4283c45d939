"""An evaluation that is launched right behind a step gives what one that is launched when it is asked for gives."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.evaluation_ahead import MOST_MISSED
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

VALIDATION = random_rows(6, seed=5)
SPEC = TrialSpec(
    trial_id=0, seed=1, adapter=AdapterSpec(r=4, lora_alpha=8.0), learning_rate=1e-2, batch_size=2, num_steps=20
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("model")
    save_llama(folder)
    return load_decoder(folder, dtype="float32")


def executor_of(decoder: Decoder, *, ahead: bool) -> tuple[Executor, list[int]]:
    """An executor of three trials, and the number of trials of each evaluation that it launches."""
    sizes = ExecutorSettings(num_slots=4, num_rank_rows=64, token_budget=200, evaluation_token_budget=40)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(12), settings=sizes)
    executor._evaluations.ahead.is_used = ahead
    launch, sizes_of = executor._evaluations.launch, []

    def counted(objectives: Any, what: Any) -> Any:
        sizes_of.append(len(objectives))
        return launch(objectives, what)

    executor._evaluations.launch = counted  # type: ignore[method-assign]
    for trial_id in range(3):
        executor.load(replace(SPEC, trial_id=trial_id, seed=trial_id))
    return executor, sizes_of


def losses(executor: Executor, trial_ids: list[int], *, num_rows: int = 6) -> list[Any]:
    found = executor.evaluate(trial_ids, rows=VALIDATION, row_ids=range(num_rows))
    return [found[trial_id] for trial_id in trial_ids]


def test_what_was_launched_ahead_is_what_is_asked_for_or_not_used(decoder: Decoder) -> None:
    found = {}
    for ahead in (False, True):
        executor, launched = executor_of(decoder, ahead=ahead)
        of_run: list[Any] = []
        for step in range(9):
            executor.expect_evaluation([[0, 1, 2]] if step < 4 else [[0], [1, 2]])
            of_run.append(executor.step())
            if step == 2:
                # a trial that left is not evaluated with the others
                executor.drop(1)
                of_run.append(losses(executor, [0, 2]))
                executor.load(replace(SPEC, trial_id=1, seed=1))
                # its weights are others than those that were launched
                of_run.append(losses(executor, [0, 1, 2]))
            elif step < 4:
                of_run.append(losses(executor, [0, 1, 2]))
            elif step == 5:
                of_run.append(losses(executor, [0], num_rows=3) + losses(executor, [1, 2], num_rows=3))
            else:
                of_run.append(losses(executor, [0]) + losses(executor, [1, 2]))
        found[ahead] = of_run
        if ahead:
            # twice more than are asked for at steps 2, 4 and 5, where others were expected
            assert executor._evaluations.ahead.is_used
            assert launched.count(3) == 5
    assert found[True] == found[False]


def test_trials_that_step_without_the_others_are_not_evaluated_ahead(decoder: Decoder) -> None:
    executor, launched = executor_of(decoder, ahead=True)
    losses(executor, [0, 1])
    executor.expect_evaluation([[0, 1]])
    executor.step([0])
    assert launched == [2]


def test_nothing_is_launched_ahead_where_nobody_asks_for_it(decoder: Decoder) -> None:
    executor, launched = executor_of(decoder, ahead=True)
    losses(executor, [0])
    for _ in range(MOST_MISSED + 3):
        executor.expect_evaluation([[0]])
        executor.step()
    assert launched == [1] * (1 + MOST_MISSED)
    assert not executor._evaluations.ahead.is_used


def test_rows_of_a_task_that_left_are_let_go(decoder: Decoder) -> None:
    executor, _ = executor_of(decoder, ahead=True)
    own = random_rows(12, seed=7)
    executor.load(replace(SPEC, trial_id=3), rows=own)
    losses(executor, [3])
    executor.drop(3)
    rows = weakref.ref(own)
    del own
    executor.step()
    assert rows() is None
