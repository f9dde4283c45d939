"""What early exit saves and loses where trials train on their own answers: the example against its full grid.

Both sweeps are the whole command without its start. Tokens are those of training passes, prompts and answers, and those
of evaluations, as the record counts them; the same tokens were drawn once. The winners are compared on the same 100
test prompts, which neither sweep chose by.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from cohort.tasks.loading import load_task
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST

TEST_PROMPTS = 100
TASK = REPOSITORY / "examples" / "reinforcement" / "task.yaml"


def swept(run: Path, *, name: str, overrides: list[str]) -> dict[str, Any]:
    """Tune the example in a folder and return what it came to."""
    began = time.process_time()
    tune(load_task(TASK, overrides), run)
    with RunReader.open(run / "run.db") as reader:
        trials, facts, steps = reader.trials(), reader.facts(), reader.log.steps()
    assert facts.base_metrics is not None
    assert facts.test is not None
    winner, base = facts.test.winner, facts.test.base
    assert base is not None
    reward, of_base = winner.values["reward"], base.values["reward"]
    evaluated = sum(trial.evaluation_tokens for trial in trials)
    differences = [step.metrics["sampler_difference"] for step in steps]
    return {
        "sweep": name,
        "winner": facts.best_trial_id,
        "parameters": dict(trials[facts.best_trial_id or 0].parameters),
        "test_reward": reward.value,
        "test_reward_low": reward.low,
        "test_reward_high": reward.high,
        "base_test_reward": of_base.value,
        "validation_rewards": {trial.trial_id: trial.best_value for trial in trials},
        "steps": {trial.trial_id: trial.steps_done for trial in trials},
        "reasons": {trial.trial_id: trial.state for trial in trials},
        "trained_tokens": sum(trial.tokens for trial in trials),
        "evaluated_tokens": evaluated,
        "cost_tokens": sum(trial.tokens for trial in trials) + EVALUATION_TOKEN_COST * evaluated,
        "first_reward": sum(step.metrics["reward"] for step in steps if step.step == 1) / len(trials),
        "largest_sampler_difference": max(differences),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def wilson(share: float, *, num: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share of ``num`` prompts: wider than nothing where all of them are right."""
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num)) / (1 + z * z / num)
    return max(0.0, middle - half), min(1.0, middle + half)


def most_apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far two winners may be apart in what they get right, at the ends of their intervals."""
    (low, high), (other_low, other_high) = (wilson(each["test_reward"], num=TEST_PROMPTS) for each in (one, other))
    return max(high - other_low, other_high - low)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "grpo_early_exit.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        early = swept(Path(folder) / "early", name="early exit", overrides=[])
        full = swept(Path(folder) / "full", name="full grid", overrides=["--early_exit", "none"])
    rows = [early, full]
    print_table(rows, columns=["sweep", "winner", "test_reward", "trained_tokens", "evaluated_tokens", "cpu_seconds"])
    write_result(
        arguments.out,
        question="What does early exit save and lose among 12 GRPO configurations that learn from rewards on a CPU?",
        headline={
            "grpo_tokens_share": early["cost_tokens"] / full["cost_tokens"],
            "grpo_same_winner": float(early["winner"] == full["winner"]),
            "grpo_winners_apart_at_most": most_apart(early, full),
            "grpo_early_test_reward": early["test_reward"],
            "grpo_full_test_reward": full["test_reward"],
            "grpo_base_test_reward": full["base_test_reward"],
            "grpo_first_step_reward": full["first_reward"],
        },
        rows=rows,
        notes={
            "task": "examples/reinforcement/task.yaml: 12 configurations, 30 steps, rewards by numeric_answer",
            "model": "examples/quickstart/base_model, float32",
            "winners": "rewards are 0 or 1: the Wilson interval of each winner on the 100 test prompts",
            "clock": "CPU time of the process, one thread; reward processes are not in it",
        },
    )


if __name__ == "__main__":
    main()
