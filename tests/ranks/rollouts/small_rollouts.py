"""A tiny model with its tokenizer, prompts with rewards, and trials that train on their own answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cohort.adapters.spec import AdapterSpec
from cohort.core.events import StepDone
from cohort.core.numerics import Numerics
from cohort.data.tokenised import AnswerScoring, TokenisedRows
from cohort.metrics.rewards import PlannedReward, RewardFinding, RewardPlan, Rewards
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives.kinds.grpo import GroupRelativePolicyOptimization
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["PROMPTS", "InlineRewards", "adapter_digest", "executor_on", "prompt_rows", "sampling_trial", "trained_to"]


# short ones, and some of more than a block of keys and values
PROMPTS = ("1+2=", "please tell me what 3+4 is", "5+6=", "what is 7+1, and why so?")
PLAN = RewardPlan(functions=(PlannedReward(name="letters", function="letters"),))


class InlineRewards:
    """A reward runner without processes: how many letters of an answer have an odd number.

    Attributes:
        failing: Prompts whose answers the function fails on.
    """

    failing: frozenset[str] = frozenset()

    def __init__(self, plan: RewardPlan) -> None:
        self.plan = plan
        self._done: dict[int, Rewards] = {}
        self._num_batches = 0

    def submit(
        self,
        *,
        prompts: Sequence[str],
        completions: Sequence[str],
        columns: Sequence[Mapping[str, Any]],
        sources: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
    ) -> int:
        del columns, completion_ids
        values, findings = [], []
        for place, (prompt, text, source) in enumerate(zip(prompts, completions, sources, strict=True)):
            values.append(float(sum(ord(letter) % 2 for letter in text)))
            if prompt in self.failing:
                values[-1] = math.nan
                findings.append(RewardFinding(answer=place, where=source, function="letters", what="raised KeyError"))
        self._num_batches += 1
        self._done[self._num_batches] = Rewards(total=tuple(values), by_function={}, findings=tuple(findings))
        return self._num_batches

    def collect(self, timeout: float | None = None) -> dict[int, Rewards]:
        del timeout
        done, self._done = self._done, {}
        return done

    def close(self) -> None:
        """There is no process."""


def prompt_rows(model: Path, *, prompts: Sequence[str] = PROMPTS, plan: RewardPlan = PLAN) -> TokenisedRows:
    """Return prompts as rows, which ``plan`` rewards answers to."""
    tokenizer = load_tokenizer(str(model))
    tokens = [np.asarray(tokenizer(prompt)["input_ids"], dtype=np.int32) for prompt in prompts]
    return TokenisedRows(
        tokens_T=np.concatenate(tokens),
        trained_T=np.zeros(sum(map(len, tokens)), dtype=np.bool_),
        offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int64),
        prompts=tuple(prompts),
        references=("",) * len(prompts),
        sources=tuple(f"prompts.jsonl:{line}" for line in range(1, len(prompts) + 1)),
        fingerprint="prompts",
        scoring=AnswerScoring(tokenizer=str(model), rewards=plan),
    )


def sampling_trial(
    trial_id: int, *, r: int = 4, batch_size: int = 2, num_steps: int = 4, dropout: float = 0.0, **objective: Any
) -> TrialSpec:
    """Return a trial with a seed of its own; ``objective`` are values of it."""
    values = {"num_generations": 4, "max_completion_length": 6, **objective}
    return TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout),
        learning_rate=1e-2,
        batch_size=batch_size,
        num_steps=num_steps,
        objective=GroupRelativePolicyOptimization(**values),
    )


def executor_on(
    model: Path,
    rows: TokenisedRows,
    *,
    num_slots: int = 8,
    token_budget: int = 256,
    answer_tokens: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    numerics: Numerics = Numerics.FAST,
) -> LocalExecutor:
    """Return an executor of a tiny model; a CPU is exact with any numerics."""
    decoder = load_decoder(str(model), dtype=dtype, device=device)
    return LocalExecutor(
        decoder,
        target_linears={
            name: shape
            for name, shape in decoder.linears.items()
            if name.endswith(("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
        },
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=num_slots,
            num_rank_rows=16 * num_slots,
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            answer_tokens=answer_tokens,
            numerics=numerics,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )


def adapter_digest(state: TrialState) -> str:
    """Return the SHA-256 of a trial's weights and moments."""
    found = hashlib.sha256(state.adapter.weights.numpy().tobytes())
    for name in sorted(state.adapter.moments or {}):
        found.update(state.adapter.moments[name].numpy().tobytes())
    return found.hexdigest()


def trained_to(
    num_steps: int, executor: LocalExecutor, specs: Sequence[TrialSpec]
) -> tuple[dict[int, str], list[StepDone]]:
    """Train trials of ``num_steps`` steps to their ends; return the digest of each and all events."""
    for spec in specs:
        executor.load(spec)
    digests, events = {}, []
    while executor.resident:
        for event in executor.step():
            events.append(event)
            if event.step == num_steps:
                digests[event.trial_id] = adapter_digest(executor.unload(event.trial_id))
    return digests, events
