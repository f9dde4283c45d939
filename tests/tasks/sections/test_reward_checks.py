"""An objective that draws answers needs rewards and is compared by them; others have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.data.settings import RowReading
from cohort.tasks.loading import load_task
from tests.tasks.task_files import BASE, problems_of, write

GRPO = BASE + "objective: grpo\nrewards: exact_match\n"


def test_trials_are_compared_by_their_reward(folder: Path) -> None:
    task = load_task(write(folder, GRPO + "evaluation: {max_examples: 9}\n"))
    assert (task.evaluation.metric, task.evaluation.maximize, task.evaluation.generates) == ("reward", True, False)
    assert task.evaluation.max_examples == 9
    assert task.dataset_settings().reads is RowReading.PROMPTS
    assert load_task(write(folder, BASE)).evaluation.metric == "loss"


def test_every_value_can_be_searched(folder: Path) -> None:
    space = (
        "{beta: [0.0, 0.04], num_generations: [4, 8], temperature: [0.7, 1.0], epsilon: {min: 0.1, max: 0.3, num: 3}}"
    )
    task = load_task(write(folder, GRPO + f"search: {{space: {space}}}\n"))
    assert {"beta", "num_generations", "temperature", "loss_type"} <= set(task.search_space().parameters)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (BASE + "objective: gspo\nrewards: exact_match\n", "Write objective: {type: grpo, loss_type: gspo}."),
        (GRPO + "grpo: {beta: 0.1}\n", "Did you mean objective?"),
        (GRPO + "reward_funcs: [exact_match]\n", "Did you mean rewards?"),
        (GRPO.replace("grpo", "{type: grpo, kl_coef: 0.1}"), "Did you mean objective.beta?"),
        (GRPO.replace("grpo", "{type: grpo, use_vllm: true}"), "Remove it: answers are drawn by the weights"),
    ],
)
def test_names_of_other_tools_lead_to_ours(folder: Path, text: str, hint: str) -> None:
    (problem,) = problems_of(folder, text)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        (BASE + "objective: grpo\n", "objective", "grpo without rewards"),
        (BASE + "rewards: exact_match\n", "rewards", "rewards with objective: sft"),
        (GRPO + "evaluation: {metric: exact_match}\n", "evaluation.metric", "metric: exact_match with grpo"),
        (GRPO + "evaluation: {metrics: [token_f1]}\n", "evaluation.metrics", "token_f1 with grpo"),
        (GRPO + "search: {space: {num_generations: [1, 4]}}\n", "search.space.num_generations[0]", "1"),
        (GRPO + "search: {space: {loss_type: [dapo, sigmoid]}}\n", "search.space.loss_type", "'sigmoid'"),
        (BASE + "objective: {type: dpo, beta: 0}\n", "objective.beta", "0.0"),
        (BASE + "objective: dpo\nsearch: {space: {beta: [0.0, 0.1]}}\n", "search.space.beta", "0.0"),
        (BASE + "objective: {type: dpo, loss_type: dapo}\n", "objective.loss_type", "'dapo'"),
        (BASE + "objective: {type: dpo, temperature: 1.0}\n", "objective.temperature", "temperature with dpo"),
        (
            BASE + "objective: {type: grpo, loss_type: cispo}\nrewards: exact_match\n",
            "objective.loss_type",
            "cispo without epsilon_high",
        ),
        (
            BASE + "objective: {type: grpo, loss_type: rloo, scale_rewards: none}\nrewards: exact_match\n",
            "objective.scale_rewards",
            "scale_rewards with loss_type: rloo",
        ),
    ],
)
def test_what_does_not_go_together_is_named(folder: Path, text: str, key: str, found: str) -> None:
    (problem,) = problems_of(folder, text)
    assert str(problem.where).endswith(key)
    assert found in problem.found
