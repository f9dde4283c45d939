"""Answers by a stream of tokens: which token belongs to whom, and what happens where memory runs out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from cohort.ranks.answers import LEAST_GENERATION_TOKENS, Answer, AnswerGenerator
from cohort.serving.generate import GenerateRequest, PickedToken

CPU = torch.device("cpu")
# the prompt tells which answer is asked for
REQUESTS = [GenerateRequest(prompt_tokens=[10 * n], max_new_tokens=3) for n in range(4)]
ANSWERS = [Answer(index=n, tokens=(10 * n + 1, 10 * n + 2), is_cut=n % 2 == 1) for n in range(4)]


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what frees a GPU's memory after a shortage: over all that other tests left it takes seconds."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def tokens_of(requests: Sequence[GenerateRequest]) -> Iterator[PickedToken]:
    """All first tokens, then all second ones; answers of odd numbers reach their most tokens, others a stop token."""
    for place, request in enumerate(requests):
        yield PickedToken(index=place, token=request.prompt_tokens[0] + 1, is_last=False)
    for place, request in enumerate(requests):
        is_cut = request.prompt_tokens[0] // 10 % 2 == 1
        yield PickedToken(index=place, token=request.prompt_tokens[0] + 2, is_last=is_cut)
        if not is_cut:
            yield PickedToken(index=place, token=None, is_last=True)


def test_interleaved_tokens_go_to_their_own_answers() -> None:
    generator = AnswerGenerator(token_budget=64, device=CPU)
    assert list(generator.answers(REQUESTS, stream=lambda some, _: tokens_of(some))) == ANSWERS
    assert list(generator.answers([], stream=lambda *_: pytest.fail("there is nothing to generate"))) == []


def test_a_share_is_one_of_the_first_budget_and_never_more_than_memory_allowed() -> None:
    generator = AnswerGenerator(token_budget=64, device=CPU)
    for share, expected in ((0.5, 32), (0.5, 32), (1.0, 32), (0.25, 16), (0.0, 1)):
        generator.lower(share=share)
        assert generator.token_budget == expected


def test_an_answer_may_be_empty() -> None:
    generator = AnswerGenerator(token_budget=64, device=CPU)
    ended = PickedToken(index=0, token=None, is_last=True)
    found = list(generator.answers(REQUESTS[:1], stream=lambda *_: iter([ended])))
    assert found == [Answer(index=0, tokens=(), is_cut=False)]


def test_after_a_shortage_only_what_was_not_finished_is_generated_again() -> None:
    asked: list[tuple[list[int], int]] = []

    def stream(requests: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
        asked.append(([request.prompt_tokens[0] for request in requests], token_budget))
        finished = 0
        for picked in tokens_of(requests):
            yield picked
            finished += picked.is_last
            if len(asked) == 1 and finished == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")

    generator = AnswerGenerator(token_budget=64, device=CPU)
    assert list(generator.answers(REQUESTS, stream=stream)) == ANSWERS
    assert asked == [([0, 10, 20, 30], 64), ([20, 30], 32)]
    # for good: what ran out once will run out again
    assert generator.token_budget == 32


def test_other_errors_are_raised_and_change_no_budget() -> None:
    def stream(requests: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
        yield from tokens_of(requests[:1])
        raise ValueError("no such slot")

    generator = AnswerGenerator(token_budget=64, device=CPU)
    with pytest.raises(ValueError, match="no such slot"):
        list(generator.answers(REQUESTS, stream=stream))
    assert generator.token_budget == 64


def test_one_answer_alone_goes_on_as_long_as_room_can_be_made() -> None:
    room = [True, True, False]
    budgets: list[int] = []

    def stream(requests: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
        budgets.append(token_budget)
        yield from tokens_of(requests[:0])
        raise torch.OutOfMemoryError("CUDA out of memory")

    least = LEAST_GENERATION_TOKENS - 1
    generator = AnswerGenerator(token_budget=least, device=CPU, make_room=lambda: room.pop(0))
    with pytest.raises(torch.OutOfMemoryError):
        list(generator.answers(REQUESTS, stream=stream))
    # a smaller budget would generate no fewer answers than one
    assert (budgets, room) == ([least] * 3, [])
