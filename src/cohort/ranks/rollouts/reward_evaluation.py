"""How trials are rewarded on held-out prompts: what they are chosen by, in the place of a validation loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from cohort.core.errors import InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Answer
from cohort.ranks.rollouts.scoring import Scorers
from cohort.serving.generate import GenerateRequest
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.rollouts.group_objective import GroupObjective

__all__ = ["AnswersTo", "evaluated_rewards"]

AnswersTo = Callable[[Sequence[GenerateRequest], frozenset[int]], Iterator[Answer]]
"""Yields the likeliest answer to each request, given the tokens that end one."""


def evaluated_rewards(
    asked: Mapping[int | None, tuple[int | None, GroupObjective]],
    *,
    rows: TokenisedRows,
    row_ids: Sequence[int],
    scorers: Scorers,
    model_stops: Sequence[int],
    answers_to: AnswersTo,
) -> dict[int | None, EvaluationLoss]:
    """Return how each of several adapters is rewarded on the same prompts, for its likeliest answers.

    The loss is minus the mean reward. An answer that no function could score counts as the lowest one that was scored.

    Args:
        asked: The slot and the objective of each trial; None is the frozen model, which has no slot.
        rows, row_ids: The prompts.
        answers_to: Generates answers.

    Raises:
        InputError: no answer of the frozen model could be rewarded, so that none of a trial could.
    """
    stops = scorers.stop_ids(rows, model_stops)
    requests = [
        GenerateRequest(
            prompt_tokens=rows.sample(row_id).tokens.tolist(),
            max_new_tokens=objective.max_completion_length,
            slot=slot,
            seed=derive_seed("evaluation", row_id),
        )
        for slot, objective in asked.values()
        for row_id in row_ids
    ]
    given: list[Answer | None] = [None] * len(requests)
    for answer in answers_to(requests, stops):
        given[answer.index] = answer
    found = [answer for answer in given if answer is not None]
    size = len(row_ids)
    tokens = [answer.tokens for answer in found]
    batches = [scorers.ask(rows, row_ids, tokens[place * size : (place + 1) * size]) for place in range(len(asked))]
    outcomes = {}
    scored = scorers.rewards_of(rows, batches)
    for place, (trial_id, (rewards, findings)) in enumerate(zip(asked, scored, strict=True)):
        own = found[place * size : (place + 1) * size]
        if trial_id is None and not any(map(math.isfinite, rewards)):
            raise InputError(_unrewarded(findings))
        outcomes[trial_id] = _outcome(_filled(rewards), own, rows=rows, row_ids=row_ids, num_failed=len(findings))
    return outcomes


def _unrewarded(findings: Sequence[str]) -> Problem:
    return Problem(
        where="rewards",
        found=findings[0] if findings else "no function that gives any answer of the base model a reward",
        allowed="functions that return a number for each answer, or None for some",
        hint="Correct the function; `cohort check` imports it and does not call it.",
    )


def _outcome(
    rewards: Sequence[float], answers: Sequence[Answer], *, rows: TokenisedRows, row_ids: Sequence[int], num_failed: int
) -> EvaluationLoss:
    count = len(row_ids)
    mean = sum(rewards) / count
    metrics = {
        "reward": mean,
        "answer_length": sum(len(answer.tokens) for answer in answers) / count,
        "cut_share": sum(answer.is_cut for answer in answers) / count,
    }
    if num_failed:
        metrics["reward_failures"] = float(num_failed)
    num_read = sum(len(rows.sample(row_id).tokens) for row_id in row_ids)
    return EvaluationLoss(
        loss=-mean,
        num_tokens=num_read + sum(len(answer.tokens) for answer in answers),
        metrics=metrics,
        terms=tuple(-reward for reward in rewards),
        divisors=(1,) * count,
        group_metrics={"reward": tuple(rewards)},
    )


def _filled(rewards: Sequence[float]) -> list[float]:
    known = [reward for reward in rewards if math.isfinite(reward)]
    lowest = min(known, default=math.nan)
    return [reward if math.isfinite(reward) else lowest for reward in rewards]
