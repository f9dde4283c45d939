"""Tokens a second of 8 trials that train on their own answers, together against one by one, on a CPU.

The quickstart's base model, the example's prompts, rewards in their processes. The trials differ in rank, group size,
temperature and longest answer. Expected before measuring: together 2.5 times where a trial draws 8 answers a step,
since a pass of 8 rows takes nearly as long as one of 64, and 1.3 times where it draws 64 by itself.

Both ways are measured in turn, by the process's own CPU time (one thread), which other programs do not lengthen and
waiting for rewards neither; the wall time stands next to it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import AnswerScoring, TokenisedRows
from cohort.metrics.rewards import PlannedReward, RewardPlan
from cohort.models.decoder import Decoder
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives.kinds.grpo import GroupRelativePolicyOptimization
from cohort.training.trial import TrialSpec

MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"
PROMPTS = REPOSITORY / "examples" / "reinforcement" / "train.jsonl"
TRIALS = 8
RANKS, LONGEST = (4, 8, 16, 8), (16, 32)


def prompts() -> TokenisedRows:
    """Return the example's prompts, with its reward."""
    tokenizer = load_tokenizer(str(MODEL))
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    tokens = [np.asarray(tokenizer(row["prompt"])["input_ids"], dtype=np.int32) for row in rows]
    plan = RewardPlan(functions=(PlannedReward(name="numeric_answer", function="numeric_answer"),))
    return TokenisedRows(
        tokens_T=np.concatenate(tokens),
        trained_T=np.zeros(sum(map(len, tokens)), dtype=np.bool_),
        offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int64),
        prompts=tuple(row["prompt"] for row in rows),
        references=("",) * len(rows),
        sources=tuple(f"train.jsonl:{line}" for line in range(1, len(rows) + 1)),
        columns=tuple(map(json.dumps, rows)),
        fingerprint="prompts",
        scoring=AnswerScoring(tokenizer=str(MODEL), rewards=plan),
    )


def trials(*, batch_size: int, num_generations: int) -> list[TrialSpec]:
    """Return trials that draw as many answers a step, of different ranks, temperatures and longest answers."""
    return [
        TrialSpec(
            trial_id=number,
            seed=number,
            adapter=AdapterSpec(r=(r := RANKS[number % len(RANKS)]), lora_alpha=2.0 * r),
            learning_rate=1e-4,
            batch_size=batch_size,
            num_steps=100,
            objective=GroupRelativePolicyOptimization(
                num_generations=num_generations,
                max_completion_length=LONGEST[number % len(LONGEST)],
                temperature=1.0 if number < TRIALS // 2 else 0.9,
            ),
        )
        for number in range(TRIALS)
    ]


class Timed:
    """A function whose CPU seconds are added up."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act, self.seconds, self.calls = act, 0.0, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return self._act(*args, **named)
        finally:
            self.seconds += time.process_time() - began
            self.calls += 1


def run(decoder: Decoder, rows: TokenisedRows, specs: Sequence[TrialSpec], *, steps: int) -> dict[str, float]:
    """Take ``steps`` steps of each of ``specs`` together; return tokens, seconds and where these went."""
    executor = LocalExecutor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=TRIALS, num_rank_rows=16 * TRIALS, token_budget=2048, evaluation_token_budget=2048
        ),
    )
    for spec in specs:
        executor.load(spec)
    rollouts = executor._sampled()
    decode, train = Timed(rollouts.decoding.step), Timed(rollouts._train)
    rollouts.decoding.step, rollouts._train = decode, train  # type: ignore[method-assign]
    # starts the processes of rewards
    executor.evaluate_base(rows=rows, row_ids=[0], objective=specs[0].objective)
    tokens, cpu, wall = 0, time.process_time(), time.perf_counter()
    while executor.resident:
        for event in executor.step():
            tokens += event.num_tokens
            if event.step == steps:
                executor.drop(event.trial_id)
    found = {
        "tokens": float(tokens),
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "decoding_seconds": decode.seconds,
        "decoding_passes": float(decode.calls),
        "training_seconds": train.seconds,
        "training_passes": float(train.calls),
    }
    executor.close()
    return found


def summed(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def measured(
    decoder: Decoder, rows: TokenisedRows, *, sizes: dict[str, int], steps: int, rounds: int
) -> dict[str, Any]:
    """Return the best round of each way, and what packing gains."""
    specs = trials(**sizes)
    ways: dict[str, list[dict[str, float]]] = {"together": [], "one by one": []}
    for _ in range(rounds):
        ways["together"].append(run(decoder, rows, specs, steps=steps))
        ways["one by one"].append(summed([run(decoder, rows, [spec], steps=steps) for spec in specs]))
    best = {name: min(found, key=lambda own: own["cpu_seconds"]) for name, found in ways.items()}
    assert best["together"]["tokens"] == best["one by one"]["tokens"], "the same bits have the same lengths"
    rates = {name: own["tokens"] / own["cpu_seconds"] for name, own in best.items()}
    row: dict[str, Any] = {**sizes, "answers_a_step": sizes["batch_size"] * sizes["num_generations"]}
    row["gain"] = rates["together"] / rates["one by one"]
    row["gain_wall"] = best["one by one"]["wall_seconds"] / best["together"]["wall_seconds"]
    for name, own in best.items():
        row[f"{name}: tokens a CPU second"] = round(rates[name])
        row |= {f"{name}: {part}": round(value, 3) for part, value in own.items()}
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "grpo_packing_gain_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder = load_decoder(str(MODEL), dtype="float32", device="cpu")
    rows = prompts()
    run(decoder, rows, [replace(spec, num_steps=1) for spec in trials(batch_size=1, num_generations=2)], steps=1)
    found = []
    for sizes in ({"batch_size": 2, "num_generations": 4}, {"batch_size": 8, "num_generations": 8}):
        found.append(measured(decoder, rows, sizes=sizes, steps=arguments.steps, rounds=arguments.rounds))
        print(json.dumps(found[-1], indent=1))
    print_table(found, columns=["answers_a_step", "gain", "gain_wall"])
    write_result(
        arguments.out,
        question="How many more tokens a second do 8 GRPO trials make together than one by one, on a CPU?",
        headline={f"grpo_packing_gain_cpu_{row['answers_a_step']}_answers": row["gain"] for row in found},
        rows=found,
        notes={
            "model": "examples/quickstart/base_model, float32",
            "trials": f"{TRIALS} of ranks 4 to 16, answers of at most 16 or 32 tokens, temperatures 1 and 0.9",
            "steps_of_each": arguments.steps,
            "clock": "CPU time of the process, one thread; best of rounds measured in turn, with other work",
            "expected_before": {"8 answers a step": 2.5, "64 answers a step": 1.3},
        },
    )


if __name__ == "__main__":
    main()
