"""Trials that train on their own answers: the same bits in every pack, strictly on-policy, and rewards that fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.events import StepDone, TrialFailed
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.packed_linear.term_heights import TermShape, least_height
from cohort.metrics.rewards import Rewards
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rollouts import scoring
from cohort.training.client_training.token_passes import train_tokens
from cohort.training.optimizers.optimizer import UnfinishedUpdateError
from cohort.training.rollouts import answer_training
from tests.ranks.rollouts.small_rollouts import (
    PROMPTS,
    InlineRewards,
    adapter_digest,
    executor_on,
    sampling_trial,
    trained_to,
)

STEPS = 3
# group sizes, lengths, ranks, losses, temperatures and several updates on one draw
TRIALS = (
    sampling_trial(0, num_steps=STEPS),
    sampling_trial(
        1, num_steps=STEPS, r=8, batch_size=1, num_generations=3, max_completion_length=12, temperature=0.7, top_p=0.9
    ),
    sampling_trial(2, num_steps=STEPS, r=2, num_generations=6, beta=0.1, num_iterations=2, loss_type="grpo"),
    sampling_trial(3, num_steps=STEPS, batch_size=3, max_completion_length=3, loss_type="gspo"),
    sampling_trial(4, num_steps=STEPS, dropout=0.3, num_iterations=2, beta=0.1),
)


@pytest.fixture(autouse=True)
def inline_rewards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(scoring, "RewardRunner", InlineRewards)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("numerics", Numerics)
def test_a_trial_has_the_same_bits_alone_in_a_pack_and_parked_in_between(
    model: Path, rows: TokenisedRows, numerics: Numerics
) -> None:
    packed, events = trained_to(STEPS, executor_on(model, rows, numerics=numerics), TRIALS)
    for spec in TRIALS:
        # other passes, and a pool of keys and values that holds few answers at a time
        executor = executor_on(model, rows, token_budget=64, answer_tokens=48, numerics=numerics)
        executor.load(spec)
        while executor.steps_of(spec.trial_id) < STEPS:
            executor.step()
            if executor.steps_of(spec.trial_id) == 1:
                executor.load(spec, executor.unload(spec.trial_id))
        assert adapter_digest(executor.unload(spec.trial_id)) == packed[spec.trial_id]
    # no trial waits for the one with the longest answers
    order = [(event.trial_id, event.step) for event in events]
    assert order.index((3, 2)) < order.index((1, 1))


def test_steps_report_what_was_drawn_and_how_far_the_sampler_is_from_the_training_pass(
    model: Path, rows: TokenisedRows
) -> None:
    _, events = trained_to(STEPS, executor_on(model, rows), TRIALS[1:3])
    for event in events:
        assert event.loss == -event.metrics["reward"]
        # float32 logits, summed in another order
        assert event.metrics["sampler_difference"] < 1e-5
        assert 0 < event.metrics["entropy"] < math.log(258) + 1
        assert event.metrics["clip_share"] == 0.0 or event.trial_id == 2
        assert event.answers
        assert all(answer.prompt in PROMPTS for answer in event.answers)
    assert all(("kl" in event.metrics) == (event.trial_id == 2) for event in events)


def rows_keep_their_bits(executor: LocalExecutor, rank: int) -> bool:
    """Return whether this machine's BLAS gives the rows of a rank's products the same bits at any height."""
    layers = [linear for layer in executor.decoder.layers for linear in layer.linears]
    shapes = {
        TermShape(
            in_features=linear.frozen.in_features,
            out_features=part.out_features,
            product_width=linear.frozen.out_features,
            rank=rank,
            factor_stride=executor.bank.weights_RD.shape[1],
            num_threads=torch.get_num_threads(),
        )
        for linear in layers
        for part in linear.parts
    }
    return all(least_height(shape) is not None for shape in shapes)


def test_in_exact_numerics_sampler_and_training_pass_give_each_token_the_same_logarithm(
    model: Path, rows: TokenisedRows
) -> None:
    executor = executor_on(model, rows, numerics=Numerics.EXACT)
    trials = [
        sampling_trial(0, num_steps=STEPS),
        # over several tiles
        sampling_trial(1, num_steps=STEPS, r=8, batch_size=1, max_completion_length=40, temperature=0.7, top_p=0.9),
        sampling_trial(2, num_steps=STEPS, r=3, batch_size=1, num_iterations=2),
    ]
    _, events = trained_to(STEPS, executor, trials)
    for event in events:
        is_stable = rows_keep_their_bits(executor, trials[event.trial_id].adapter.r)
        # a rank that is no multiple of 4 is never multiplied with other samples
        assert not is_stable or event.trial_id != 2
        assert event.metrics["sampler_difference"] <= (0.0 if is_stable else 1e-5)


def test_dropout_is_in_the_training_pass_alone_and_the_first_ratio_is_still_one(
    model: Path, rows: TokenisedRows
) -> None:
    _, (dropped, *_) = trained_to(STEPS, executor_on(model, rows), [sampling_trial(0, num_steps=STEPS, dropout=0.5)])
    _, (whole, *_) = trained_to(STEPS, executor_on(model, rows), [sampling_trial(0, num_steps=STEPS)])
    # a fresh adapter adds nothing: the answers are the same, and the masks are in the gradients
    assert dropped.answers == whole.answers
    assert dropped.grad_norm != whole.grad_norm
    assert dropped.metrics["clip_share"] == 0.0
    _, events = trained_to(STEPS, executor_on(model, rows), [sampling_trial(0, num_steps=STEPS, dropout=0.5)])
    assert events[-1].metrics["sampler_difference"] > 1e-4


def test_answers_are_drawn_after_the_trial_has_trained_and_depend_on_the_step(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_on(model, rows)
    spec = sampling_trial(0, num_steps=STEPS)
    executor.load(spec)
    asked: list[tuple[int, int]] = []
    decoding = executor._sampled().decoding
    ask = decoding.ask

    def noted(answer: object) -> None:
        asked.append((executor.steps_of(0), answer.seed))  # type: ignore[attr-defined]
        ask(answer)  # type: ignore[arg-type]

    monkeypatch.setattr(decoding, "ask", noted)
    executor.step()
    executor.step()
    assert [step for step, _ in asked] == [0] * 8 + [1] * 8
    assert len({seed for _, seed in asked}) == 16


def test_a_group_in_which_a_reward_fails_teaches_nothing_and_a_step_without_any_ends_its_trial_alone(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InlineRewards, "failing", frozenset(PROMPTS[:1]))
    executor = executor_on(model, rows)
    of_all, of_one = sampling_trial(0, batch_size=4), sampling_trial(1, batch_size=1, num_steps=4)
    executor.load(of_all)
    executor.load(of_one)
    failures: list[TrialFailed] = []
    events: list[StepDone] = []
    while executor.steps_of(0) < 4:
        events += executor.step(executor.resident)
        for failure in executor.take_failures():
            failures.append(failure)
            executor.drop(failure.trial_id)
    # every batch of four prompts has the failing one
    assert {event.metrics["reward_failures"] for event in events if event.trial_id == 0} == {4.0}
    assert {event.metrics["reward_errors"] for event in events if event.trial_id == 0} == {0.25}
    assert all(math.isfinite(event.loss) for event in events)
    (failure,) = failures
    assert failure.trial_id == 1
    assert "prompts.jsonl:1: the reward letters raised KeyError" in failure.message
    assert "2 times" in failure.message


def test_a_step_whose_answers_are_all_rewarded_alike_is_counted_and_moves_nothing_but_by_decay(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alike(self: InlineRewards, timeout: float | None = None) -> dict[int, object]:
        del timeout
        found = {number: Rewards(total=(1.0,) * 8, by_function={}) for number in self._done}
        self._done.clear()
        return found  # type: ignore[return-value]

    monkeypatch.setattr(InlineRewards, "collect", alike)
    executor = executor_on(model, rows)
    executor.load(sampling_trial(0))
    (event,) = executor.step()
    assert (event.metrics["groups_alike"], event.metrics["reward_std"], event.grad_norm) == (1.0, 0.0, 0.0)


def test_an_error_between_two_updates_on_the_same_answers_asks_for_the_state_before(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_on(model, rows)
    spec = sampling_trial(0, num_iterations=2, num_steps=STEPS)
    executor.load(spec)
    expected = executor_on(model, rows)
    expected.load(spec)
    expected.step()
    calls = [0]

    def broken(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("a driver")
        return train_tokens(*args, **named)

    monkeypatch.setattr(answer_training, "train_tokens", broken)
    with pytest.raises(UnfinishedUpdateError, match="further update"):
        executor.step()
    executor.drop(0)
    executor.load(spec)
    executor.step()
    assert adapter_digest(executor.unload(0)) == adapter_digest(expected.unload(0))


def test_held_out_rewards_are_those_of_the_likeliest_answers_or_of_some_in_any_company(
    model: Path, rows: TokenisedRows
) -> None:
    executor = executor_on(model, rows)
    for spec in TRIALS[:2]:
        executor.load(spec)
    together = executor.evaluate([0, 1], rows=rows, row_ids=[0, 2])
    assert together[1] == executor.evaluate([1], rows=rows, row_ids=[0, 2])[1]
    found = together[0]
    assert found.loss == -sum(found.group_metrics["reward"]) / 2 == sum(found.terms) / 2
    assert rows.scoring is not None
    drawing = replace(rows, scoring=replace(rows.scoring, num_generations=3))
    drawn = executor.evaluate([0, 1], rows=drawing, row_ids=[0, 2])
    assert drawn[1] == executor.evaluate([1], rows=drawing, row_ids=[0, 2])[1]
    # three answers to each row, and a mean for each row
    assert (len(drawn[0].terms), drawn[0].group_metrics["reward"]) != (2, found.group_metrics["reward"])
    assert drawn[0].num_tokens > 2 * found.num_tokens
    base = executor.evaluate_base(rows=rows, row_ids=[0, 2], objective=TRIALS[0].objective)
    # a fresh adapter adds nothing
    assert base.group_metrics == found.group_metrics
