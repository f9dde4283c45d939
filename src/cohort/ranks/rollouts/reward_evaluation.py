"""How trials are rewarded on held-out prompts: what they are chosen by, in the place of a validation loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from cohort.core.errors import InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Answer
from cohort.ranks.rollouts.decoding import BASE_MODEL, AskedAnswer
from cohort.ranks.rollouts.open_step import EndedConversation
from cohort.ranks.rollouts.scoring import Scorers
from cohort.serving.generate import GenerateRequest
from cohort.serving.sampler import Sampling
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.rollouts.group_objective import GroupObjective

__all__ = ["AnswersTo", "ConversationsOf", "evaluated_rewards"]

AnswersTo = Callable[[Sequence[GenerateRequest], frozenset[int], Sampling], Iterator[Answer]]
"""Yields the answer to each request, given the tokens that end one and how they are picked."""

ConversationsOf = Callable[[Sequence[AskedAnswer], TokenisedRows, Sequence[int]], list[EndedConversation]]
"""Returns the conversations that begin with what is asked, in its order; each is of a row of the given numbers."""


def evaluated_rewards(
    asked: Mapping[int | None, tuple[int | None, GroupObjective]],
    *,
    rows: TokenisedRows,
    row_ids: Sequence[int],
    scorers: Scorers,
    model_stops: Sequence[int],
    answers_to: AnswersTo,
    conversations_of: ConversationsOf | None = None,
    context: int = 0,
) -> dict[int | None, EvaluationLoss]:
    """Return how each of several adapters is rewarded on the same prompts, for its likeliest answers or some it draws.

    The loss is minus the mean reward. A draw depends on the row and its number alone, so all adapters meet the same.
    An answer that no function could score counts as the lowest one that was scored.

    Args:
        asked: The slot and the objective of each trial; None is the frozen model, which has no slot.
        rows, row_ids: The prompts.
        answers_to: Gives answers.
        conversations_of: Gives conversations, where answers are replied to.
        context: The longest sequence that the model reads, for them.

    Raises:
        InputError: no answer of the frozen model could be rewarded, so that none of a trial could.
    """
    if scorers.converses(rows):
        assert conversations_of is not None, "who evaluates can hold conversations"
        return _of_conversations(
            asked,
            rows=rows,
            row_ids=row_ids,
            stops=scorers.stop_ids(rows, model_stops),
            conversations_of=conversations_of,
            context=context,
        )
    stops, size, per_row = scorers.stop_ids(rows, model_stops), len(row_ids), max(1, _num_generations(rows))
    found: list[list[Answer]] = [[] for _ in asked]
    # answers of all who draw alike share passes
    by_sampling: dict[Sampling, list[int]] = {}
    for place, (_, objective) in enumerate(asked.values()):
        by_sampling.setdefault(_sampling(objective, rows), []).append(place)
    for sampling, places in by_sampling.items():
        own = [entry for place, entry in enumerate(asked.values()) if place in places]
        requests = [request for entry in own for request in _requests(*entry, rows=rows, row_ids=row_ids)]
        answers = sorted(answers_to(requests, stops, sampling), key=lambda answer: answer.index)
        for number, place in enumerate(places):
            found[place] = answers[number * size * per_row : (number + 1) * size * per_row]
    repeated = [row_id for row_id in row_ids for _ in range(per_row)]
    batches = [scorers.ask(rows, repeated, [answer.tokens for answer in own]) for own in found]
    outcomes = {}
    scored = scorers.rewards_of(rows, batches)
    for place, (trial_id, (rewards, findings)) in enumerate(zip(asked, scored, strict=True)):
        if trial_id is None and not any(map(math.isfinite, rewards)):
            raise InputError(_unrewarded(findings))
        filled = _filled(rewards)
        means = [sum(filled[row * per_row : (row + 1) * per_row]) / per_row for row in range(size)]
        outcomes[trial_id] = _outcome(means, found[place], rows=rows, row_ids=repeated, num_failed=len(findings))
    return outcomes


def _of_conversations(
    asked: Mapping[int | None, tuple[int | None, GroupObjective]],
    *,
    rows: TokenisedRows,
    row_ids: Sequence[int],
    stops: frozenset[int],
    conversations_of: ConversationsOf,
    context: int,
) -> dict[int | None, EvaluationLoss]:
    per_row = max(1, _num_generations(rows))
    repeated = [row_id for row_id in row_ids for _ in range(per_row)]
    wanted = []
    for trial_id, (_, objective) in asked.items():
        for place, row_id in enumerate(repeated):
            tokens = tuple(rows.sample(row_id).tokens.tolist())
            number = place % per_row
            wanted.append(
                AskedAnswer(
                    key=(BASE_MODEL if trial_id is None else trial_id, place // per_row, number),
                    version="evaluation",
                    prompt_tokens=tokens,
                    most_tokens=min(objective.max_completion_length, context - len(tokens)),
                    sampling=_sampling(objective, rows),
                    seed=derive_seed("evaluation", row_id, number),
                    stop_ids=stops,
                )
            )
    found = conversations_of(wanted, rows, repeated * len(asked))
    outcomes = {}
    for place, trial_id in enumerate(asked):
        own = found[place * len(repeated) : (place + 1) * len(repeated)]
        rewards, findings = [each.reward for each in own], [each.finding for each in own if each.finding]
        if trial_id is None and not any(map(math.isfinite, rewards)):
            raise InputError(_unrewarded(findings))
        filled = _filled(rewards)
        means = [sum(filled[row * per_row : (row + 1) * per_row]) / per_row for row in range(len(row_ids))]
        answers = [
            Answer(index=index, tokens=tuple(each.answer.tokens.tolist()), is_cut=each.answer.is_cut)
            for index, each in enumerate(own)
        ]
        outcomes[trial_id] = _outcome(means, answers, rows=rows, row_ids=repeated, num_failed=len(findings))
    return outcomes


def _requests(
    slot: int | None, objective: GroupObjective, *, rows: TokenisedRows, row_ids: Sequence[int]
) -> Iterator[GenerateRequest]:
    for row_id in row_ids:
        for number in range(max(1, _num_generations(rows))):
            yield GenerateRequest(
                prompt_tokens=rows.sample(row_id).tokens.tolist(),
                max_new_tokens=objective.max_completion_length,
                slot=slot,
                seed=derive_seed("evaluation", row_id, number),
            )


def _num_generations(rows: TokenisedRows) -> int:
    return 0 if rows.scoring is None else rows.scoring.num_generations


def _sampling(objective: GroupObjective, rows: TokenisedRows) -> Sampling:
    """Return how answers of an evaluation are picked: the likeliest one, or drawn as in training."""
    if not _num_generations(rows):
        return Sampling()
    return Sampling(temperature=objective.temperature, top_p=objective.top_p)


def _unrewarded(findings: Sequence[str]) -> Problem:
    return Problem(
        where="rewards",
        found=findings[0] if findings else "no function that gives any answer of the base model a reward",
        allowed="functions that return a number for each answer, or None for some",
        hint="Correct the function.",
    )


def _outcome(
    rewards: Sequence[float], answers: Sequence[Answer], *, rows: TokenisedRows, row_ids: Sequence[int], num_failed: int
) -> EvaluationLoss:
    count, mean = len(answers), sum(rewards) / len(rewards)
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
        divisors=(1,) * len(rewards),
        group_metrics={"reward": tuple(rewards)},
    )


def _filled(rewards: Sequence[float]) -> list[float]:
    known = [reward for reward in rewards if math.isfinite(reward)]
    lowest = min(known, default=math.nan)
    return [reward if math.isfinite(reward) else lowest for reward in rewards]
