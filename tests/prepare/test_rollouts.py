"""What a task cannot be combined with whose trials train on their own answers, and what travels with its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cohort.data.tokenised import TokenisedRows
from cohort.prepare.rollouts import rollout_problems, scored_rows
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CONTEXT = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs") / "inputs")


def drawing_task(folder: Path, **sections: Any) -> TaskFile:
    own = {"objective": {"type": "grpo"}, "rewards": ["exact_match"], "lora": {"lora_dropout": 0.0}}
    return tiny_task(folder, **{**own, **sections})


def rows_of(*lengths: int) -> TokenisedRows:
    return TokenisedRows(
        tokens_T=np.zeros(sum(lengths), dtype=np.int32),
        trained_T=np.zeros(sum(lengths), dtype=np.bool_),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        prompts=("",) * len(lengths),
        references=("",) * len(lengths),
        sources=tuple(f"prompts.jsonl:{line}" for line in range(1, len(lengths) + 1)),
        fingerprint="",
    )


def found(task: TaskFile, *, num_ranks: int = 1, lengths: tuple[int, ...] = (4, 9), **config: Any) -> list[str]:
    known = {"bridged": None, "architecture": "Gemma2ForCausalLM", "logit_cap": None, **config}
    settings: Any = SimpleNamespace(max_position_embeddings=CONTEXT, **known)
    data: Any = SimpleNamespace(train=rows_of(*lengths), all_validation=rows_of(4), test=None)
    return [problem.found for problem in rollout_problems(task, settings, data, num_ranks=num_ranks)]


def test_a_task_that_is_in_order_has_no_problem_and_others_are_not_asked(folder: Path) -> None:
    assert found(drawing_task(folder)) == []
    assert found(tiny_task(folder), num_ranks=4, lengths=(CONTEXT,)) == []


def test_each_thing_that_does_not_go_together_is_named(folder: Path) -> None:
    assert found(drawing_task(folder), num_ranks=2) == []
    (divided,) = found(drawing_task(folder, strategy="pipeline"), num_ranks=2)
    assert divided.startswith("pipeline, which divides a model among 2 ranks")
    (saved,) = found(drawing_task(folder, lora={"lora_dropout": 0.1, "modules_to_save": ["lm_head"]}))
    assert saved.startswith("lm_head")
    warm = drawing_task(folder, search={"space": {"temperature": [0.7, 1.0]}})
    assert found(warm, logit_cap=30.0) == []


def test_a_prompt_that_leaves_no_room_for_an_answer_is_named_with_its_row(folder: Path) -> None:
    (problem,) = found(drawing_task(folder), lengths=(4, CONTEXT, CONTEXT - 1, CONTEXT + 3))
    assert problem == f"a prompt of {CONTEXT + 3} tokens, one of 2 without room for an answer"


def test_rows_carry_the_rewards_of_their_task(folder: Path) -> None:
    task = drawing_task(folder, evaluation={"num_generations": 4})
    scoring = scored_rows(rows_of(3), task=task).scoring
    assert scoring is not None
    assert task.rewards is not None
    assert (scoring.rewards, scoring.num_generations) == (task.rewards.plan(), 4)
    assert scored_rows(rows_of(3), task=tiny_task(folder)).scoring is None
    # as executors compare them
    assert replace(scoring) == scoring
