"""What a rank does for each command, and that commands survive the way to it."""

from __future__ import annotations

import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.memory_records import PassKind
from cohort.ranks import commands
from cohort.ranks.answers import Prompt
from cohort.ranks.commands import (
    Command,
    Drop,
    Evaluate,
    Fits,
    Generate,
    Load,
    LowerBudgets,
    MakeRoom,
    Rank,
    Rows,
    State,
    Step,
    Weights,
)
from cohort.ranks.rank_executor import RankExecutor
from tests.training.small_models import random_rows

SPEC: Any = SimpleNamespace(trial_id=3)
BUDGETS = {PassKind.TRAIN: 128, PassKind.EVALUATE: 256}
PROMPTS = (Prompt(trial_id=None, tokens=(1, 2)),)


class Recorder:
    """An executor that keeps what it is asked; the answer is the method's name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        signature = inspect.signature(getattr(RankExecutor, name))

        def call(*args: Any, **named: Any) -> str:
            # as strict as the real one
            signature.bind(self, *args, **named)
            self.calls.append((name, args, named))
            return name

        return call


def rank_of(executor: Recorder) -> Rank:
    fake: Any = executor
    return Rank(executor=fake, rows={0: random_rows(2)})


@pytest.mark.parametrize(
    ("command", "called", "args", "named"),
    [
        (Fits(spec=SPEC), "fits", (SPEC,), {}),
        (Drop(trial_id=3), "drop", (3,), {}),
        # states and weights stay where they are as long as there is room: rank 0 opens them there
        (State(trial_id=3), "state", (3,), {"on_device": True}),
        (Weights(trial_id=3), "weights", (3,), {"on_device": True}),
        (Step(trial_ids=(3, 1)), "step", ((3, 1),), {}),
        (
            Generate(prompts=PROMPTS, max_new_tokens=4, stop_ids=frozenset({2})),
            "generate",
            (PROMPTS,),
            {"max_new_tokens": 4, "stop_ids": frozenset({2})},
        ),
        (MakeRoom(), "make_room", (), {}),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "run") else None,
)
def test_a_command_is_one_call(command: Command, called: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    executor = Recorder()
    answer = command.run(rank_of(executor))
    assert executor.calls == [(called, args, named)]
    assert answer == (None if isinstance(command, Drop) else called)
    assert pickle.loads(pickle.dumps(command)) == command


def test_rows_travel_once_and_are_named_by_number_after_that() -> None:
    executor = Recorder()
    rank = rank_of(executor)
    others = random_rows(3, seed=1)
    Rows(number=1, rows=others).run(rank)
    Load(spec=SPEC, state=None, rows=1).run(rank)
    Evaluate(trial_ids=(3,), rows=1, row_ids=(0, 2)).run(rank)
    (load, evaluate) = executor.calls
    assert load[1] == (SPEC, None)
    assert load[2]["rows"] is others
    assert evaluate[1] == ((3,),)
    assert evaluate[2]["rows"] is others
    assert evaluate[2]["row_ids"] == (0, 2)
    with pytest.raises(KeyError):
        Load(spec=SPEC, state=None, rows=2).run(rank)


@pytest.mark.parametrize("keep_tokens", [None, 0, 64])
def test_what_is_kept_is_lowered_only_where_it_is_given(keep_tokens: int | None) -> None:
    executor = Recorder()
    LowerBudgets(token_budgets=BUDGETS, keep_tokens=keep_tokens).run(rank_of(executor))
    kept: list[Any] = [] if keep_tokens is None else [("lower_kept_tokens", (keep_tokens,), {})]
    assert executor.calls == [("lower_token_budgets", (BUDGETS,), {}), *kept]


def test_every_command_is_public_and_its_fields_have_names() -> None:
    found = {
        name
        for name, value in vars(commands).items()
        if isinstance(value, type) and hasattr(value, "run") and value.__module__ == commands.__name__
    }
    assert found <= set(commands.__all__)
    with pytest.raises(TypeError):
        Drop(3)  # type: ignore[call-arg]
