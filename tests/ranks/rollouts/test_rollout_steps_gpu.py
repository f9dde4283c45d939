"""Trials that train on their own answers on a GPU: recorded decoding reads the weights that train; exact bits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rollouts import scoring
from tests.ranks.rollouts.small_rollouts import (
    InlineRewards,
    adapter_digest,
    executor_on,
    sampling_trial,
    trained_to,
)

pytestmark = pytest.mark.gpu

STEPS = 3
TRIALS = (
    sampling_trial(0, num_steps=STEPS),
    sampling_trial(
        1, num_steps=STEPS, r=8, batch_size=1, num_generations=3, max_completion_length=12, temperature=0.7, top_p=0.9
    ),
    # a rank of another class, several updates on one draw, and the frozen model's passes
    sampling_trial(2, num_steps=STEPS, r=32, num_generations=6, beta=0.1, num_iterations=2, loss_type="grpo"),
    sampling_trial(3, num_steps=STEPS, batch_size=3, max_completion_length=3, loss_type="gspo"),
    sampling_trial(4, num_steps=STEPS, dropout=0.3),
)


@pytest.fixture(autouse=True)
def inline_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RewardRunner", InlineRewards)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-2), ("bfloat16", 0.3)])
def test_recorded_passes_draw_with_the_weights_of_the_last_step(
    model: Path, rows: TokenisedRows, dtype: str, most: float
) -> None:
    executor = executor_on(model, rows, num_slots=12, device="cuda", dtype=dtype)
    digests, events = trained_to(STEPS, executor, TRIALS)
    assert len(digests) == len(TRIALS)
    engine = executor._sampled().decoding._engine
    assert engine is not None
    assert engine.graphs is not None
    assert engine.graphs.num_replays > 0
    for event in events:
        assert math.isfinite(event.loss)
        assert math.isfinite(event.grad_norm)
        # steps of 1e-2 move the logits of so small a model by far more: old weights would be seen
        assert event.trial_id == 4 or event.metrics["sampler_difference"] < most, event
    assert any(event.grad_norm > 0 for event in events)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_exact_numerics_a_trial_has_the_same_bits_alone_in_a_pack_and_parked_in_between(
    model: Path, rows: TokenisedRows, dtype: str
) -> None:
    def opened(**sizes: int) -> LocalExecutor:
        return executor_on(model, rows, device="cuda", dtype=dtype, numerics=Numerics.EXACT, **sizes)

    packed, events = trained_to(STEPS, opened(num_slots=12), TRIALS)
    told = {(event.trial_id, event.step): (event.loss, event.grad_norm, event.answers) for event in events}
    for spec in TRIALS:
        # other passes, and a pool of keys and values that holds few answers at a time
        executor = opened(token_budget=64, answer_tokens=48)
        executor.load(spec)
        while executor.steps_of(spec.trial_id) < STEPS:
            (event,) = executor.step()
            assert (event.loss, event.grad_norm, event.answers) == told[spec.trial_id, event.step]
            if event.step == 1:
                executor.load(spec, executor.unload(spec.trial_id))
        assert adapter_digest(executor.unload(spec.trial_id)) == packed[spec.trial_id]


def test_held_out_rewards_in_exact_numerics_are_the_same_in_any_company(model: Path, rows: TokenisedRows) -> None:
    executor = executor_on(model, rows, num_slots=12, device="cuda", dtype="bfloat16", numerics=Numerics.EXACT)
    for spec in TRIALS:
        executor.load(spec)
    executor.step()
    together = executor.evaluate([0, 1, 2, 3, 4], rows=rows, row_ids=[0, 2])
    for trial_id, found in together.items():
        assert executor.evaluate([trial_id], rows=rows, row_ids=[0, 2])[trial_id] == found
