"""Answers of several turns: one sequence of tokens whose replies are not trained on, with the same bits in a pack."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cohort.core.events import StepDone
from cohort.data.tokenised import TokenisedRows
from cohort.metrics.rewards import PlannedReward, Reply, RewardPlan, Said
from cohort.models.tokenizer import load_tokenizer
from cohort.ranks.rollouts import scoring
from cohort.training.rollouts.answered_step import AnsweredStep
from cohort.training.trial import TrialSpec
from tests.ranks.rollouts.small_rollouts import (
    PROMPTS,
    adapter_digest,
    executor_on,
    prompt_rows,
    sampling_trial,
    trained_to,
)

STEPS = 2
PLAN = RewardPlan(functions=(PlannedReward(name="asks", function="asks", turns=3),))
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
TRIALS = (
    sampling_trial(0, num_steps=STEPS, max_completion_length=40),
    sampling_trial(
        1, num_steps=STEPS, r=8, batch_size=1, num_generations=3, max_completion_length=24, loss_type="gspo"
    ),
    sampling_trial(2, num_steps=STEPS, batch_size=1, max_completion_length=60, beta=0.1, num_iterations=2),
)


class InlineReplies:
    """A conversation runner without processes: asks "more?" until three turns are over, and counts odd letters.

    Attributes:
        failing: Prompts whose conversations the function fails in.
    """

    failing: frozenset[str] = frozenset()
    heard: list[Said] = []

    def __init__(self, plan: RewardPlan) -> None:
        self.plan, self.name = plan, "asks"
        self._done: dict[int, Reply] = {}
        self._next = 0

    def submit(self, said: Said) -> int:
        InlineReplies.heard.append(replace(said, messages=[dict(message) for message in said.messages]))
        text = str(said.messages[-1]["content"])
        if said.messages[0]["content"] in self.failing:
            reply = Reply(finding="raised KeyError")
        elif said.is_last or len(text) % 3 == 0:
            reply = Reply(reward=float(sum(ord(letter) % 2 for letter in text)))
        else:
            reply = Reply(messages=({"role": "user", "content": "more?"},))
        self._next += 1
        self._done[self._next] = reply
        return self._next

    def collect(self, wanted: Collection[int], timeout: float | None = None) -> dict[int, Reply]:
        del timeout
        return {number: self._done.pop(number) for number in list(wanted)[:3]}

    def forget(self, number: int) -> None:
        self._done.pop(number, None)

    def close(self) -> None:
        """There is no process."""


@pytest.fixture(scope="module")
def rows(model: Path) -> TokenisedRows:
    return prompt_rows(model, plan=PLAN)


@pytest.fixture(autouse=True)
def inline_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(scoring, "ConversationRunner", InlineReplies)
    # a random model hardly ever ends a turn by itself: a fifth of its tokens end one
    monkeypatch.setattr(scoring.Scorers, "stop_ids", lambda *_: frozenset(range(1, 52)))
    monkeypatch.setattr(InlineReplies, "heard", [])


def trained(executor: Any, specs: Sequence[TrialSpec]) -> tuple[dict[int, str], list[StepDone], list[AnsweredStep]]:
    steps: list[AnsweredStep] = []
    train = executor._sampled()._train

    def noted(answered: Sequence[AnsweredStep]) -> tuple[StepDone, ...]:
        steps.extend(answered)
        result: tuple[StepDone, ...] = train(answered)
        return result

    executor._sampled()._train = noted
    return *trained_to(STEPS, executor, specs), steps


def test_a_conversation_is_one_sequence_whose_replies_are_not_trained_on(model: Path, rows: TokenisedRows) -> None:
    executor = executor_on(model, rows, token_budget=1024)
    _, events, steps = trained(executor, TRIALS)
    tokenizer = load_tokenizer(str(model))
    reply = tokenizer("more?", add_special_tokens=False)["input_ids"]
    several = 0
    for step in steps:
        for _, answer in step.pairs():
            assert answer.given is not None
            given = answer.tokens[answer.given].tolist()
            assert given == reply * (len(given) // len(reply))
            assert (answer.logps[answer.given] == 0).all()
            assert (answer.logps[answer.own] < 0).all()
            assert len(answer.tokens) <= step.objective.max_completion_length
            assert 1 <= answer.turns <= 3
            several += answer.turns > 1
    assert several > 3
    for event in events:
        assert event.metrics["sampler_difference"] < 1e-5
        assert event.metrics["turns"] >= 1
        assert math.isfinite(event.grad_norm)
    # what is said again is drawn again
    second = {(own.conversation, own.turn): own.messages[-1]["content"] for own in InlineReplies.heard if own.turn <= 2}
    assert any(second[number, 1] != text for (number, turn), text in second.items() if turn == 2)


def test_a_trial_has_the_same_bits_alone_and_parked_in_between(model: Path, rows: TokenisedRows) -> None:
    packed, _, _ = trained(executor_on(model, rows, token_budget=1024), TRIALS)
    for spec in TRIALS:
        executor = executor_on(model, rows, token_budget=96, answer_tokens=96)
        executor.load(spec)
        while executor.steps_of(spec.trial_id) < STEPS:
            executor.step()
            if executor.steps_of(spec.trial_id) == 1:
                executor.load(spec, executor.unload(spec.trial_id))
        assert adapter_digest(executor.unload(spec.trial_id)) == packed[spec.trial_id]


def test_gradients_do_not_reach_tokens_of_replies(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cohort.training.client_training.token_passes import train_tokens
    from cohort.training.rollouts import answer_training

    seen: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def noted(*args: Any, **named: Any) -> Any:
        results = train_tokens(*args, **named)
        seen.extend(
            (entry.datum.inputs["weights"], result.terms) for entry, result in zip(args[2], results, strict=True)
        )
        return results

    monkeypatch.setattr(answer_training, "train_tokens", noted)
    _, _, steps = trained(executor_on(model, rows, token_budget=1024), [TRIALS[0]])
    masks = [answer.own for step in steps for _, answer in step.pairs()]
    for (weights, terms), own in zip(seen, masks, strict=True):
        assert ((weights[:, 0] != 0) == own).all()
        assert not terms[~own].any()
    for step, part in zip(steps, np.split(np.array([w[w != 0].sum() for w, _ in seen]), STEPS), strict=True):
        # dapo: each token counts as much as any other of the step
        assert part.sum() == pytest.approx(1.0), step.resident.step


def test_a_function_that_fails_is_named_with_its_row_and_ends_a_trial_without_any_reward(
    model: Path, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InlineReplies, "failing", frozenset(PROMPTS[:1]))
    executor = executor_on(model, rows)
    executor.load(sampling_trial(0, batch_size=4, max_completion_length=40))
    executor.load(sampling_trial(1, batch_size=1, max_completion_length=40))
    failures: list[Any] = []
    failed_answers = set()
    for _ in range(12):
        for event in executor.step(executor.resident):
            failed_answers.add(event.metrics["reward_failures"])
        for failure in executor.take_failures():
            failures.append(failure)
            executor.drop(failure.trial_id)
        if executor.steps_of(0) >= 3 and failures:
            break
    assert failed_answers >= {4.0}
    (failure,) = failures
    assert failure.trial_id == 1
    assert "1 time: prompts.jsonl:1: the reward asks raised KeyError" in failure.message


def test_held_out_conversations_are_the_same_in_any_company_and_leave_open_ones_alone(
    model: Path, rows: TokenisedRows
) -> None:
    executor = executor_on(model, rows)
    for spec in TRIALS[:2]:
        executor.load(spec)
    executor.step()
    together = executor.evaluate([0, 1], rows=rows, row_ids=[0, 2])
    assert together[1] == executor.evaluate([1], rows=rows, row_ids=[0, 2])[1]
    assert together[0].loss == -sum(together[0].group_metrics["reward"]) / 2
    base = executor.evaluate_base(rows=rows, row_ids=[0, 2], objective=TRIALS[0].objective)
    assert math.isfinite(base.loss)
    assert executor.step()


def test_a_chat_goes_on_as_its_template_writes_it(model: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((model / file).read_bytes())
    prompt = [{"role": "user", "content": "hm"}]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    plain = prompt_rows(tmp_path, prompts=(text,) * 2, plan=PLAN)
    rows = replace(plain, columns=(json.dumps({"prompt": prompt}),) * 2)
    executor = executor_on(tmp_path, rows)
    _, _, steps = trained(executor, [sampling_trial(0, num_steps=STEPS, batch_size=1, max_completion_length=60)])
    behind = tokenizer("</s><user>more?</s><a>", add_special_tokens=False)["input_ids"]
    ended_by_themselves = [behind, behind[1:]]
    replies = 0
    for step in steps:
        for _, answer in step.pairs():
            edges = np.flatnonzero(np.diff(np.concatenate([[False], answer.given, [False]]).astype(int)))
            for start, stop in edges.reshape(-1, 2):
                assert answer.tokens[start:stop].tolist() in ended_by_themselves
                replies += 1
    assert replies > 1
    assert all(message["role"] in ("user", "assistant") for own in InlineReplies.heard for message in own.messages)
