"""Answers to prompts by what is in a bank, with fewer at a time where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from cohort.serving.generate import GenerateRequest, PickedToken
from cohort.training.device_memory import is_out_of_memory, release_cached

__all__ = ["LEAST_GENERATION_TOKENS", "Answer", "AnswerGenerator", "Prompt", "TokenStream"]

LEAST_GENERATION_TOKENS = 16
"""With a smaller budget an answer is generated alone, so that a still smaller one would free nothing."""

TokenStream = Callable[[Sequence[GenerateRequest], int], Iterator[PickedToken]]
"""Yields the tokens of requests with at most the given number of positions at once."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A finished answer.

    Attributes:
        index: The place of its request in the list.
        tokens: Without the prompt and the stop token.
        is_cut: Whether it reached its most tokens, or the end of the model's context.
    """

    index: int
    tokens: tuple[int, ...]
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What one resident, or the frozen model alone (None), is to continue."""

    trial_id: int | None
    tokens: Sequence[int]


class AnswerGenerator:
    """Generates answers within a budget of tokens that it halves, for good, where memory runs out.

    Attributes:
        token_budget: Most positions, of prompts and what they may grow to, that are kept at once.
    """

    def __init__(
        self,
        *,
        token_budget: int,
        device: torch.device,
        make_room: Callable[[], bool] = lambda: False,
        repeats_smaller: bool = True,
    ) -> None:
        """Generate on ``device``.

        Args:
            make_room: Frees what is kept there only to save time; returns False if there was nothing.
            repeats_smaller: Whether to go on with fewer at a time where memory runs out, or to raise.
        """
        self._repeats_smaller = repeats_smaller
        self.token_budget, self._device, self._make_room = token_budget, device, make_room
        self._first_budget = token_budget

    def lower(self, *, share: float) -> None:
        """Lower the budget to a share of the first one, where it is higher."""
        self.token_budget = min(self.token_budget, max(1, int(self._first_budget * share)))

    def continued(
        self, prompts: Sequence[Prompt], *, slot_of: Callable[[int], int], max_new_tokens: int, stream: TokenStream
    ) -> list[list[int]]:
        """Return the tokens of the answer to each prompt."""
        requests = [
            GenerateRequest(
                prompt_tokens=prompt.tokens,
                max_new_tokens=max_new_tokens,
                slot=None if prompt.trial_id is None else slot_of(prompt.trial_id),
            )
            for prompt in prompts
        ]
        found: list[list[int]] = [[] for _ in prompts]
        for answer in self.answers(requests, stream=stream):
            found[answer.index] = list(answer.tokens)
        return found

    def answers(self, requests: Sequence[GenerateRequest], *, stream: TokenStream) -> Iterator[Answer]:
        """Yield each answer of ``stream`` once it is finished; how many run at a time changes none of them."""
        left = list(enumerate(requests))
        while left:
            finished: set[int] = set()
            is_alone = self.token_budget < LEAST_GENERATION_TOKENS
            try:
                for answer in _finished(stream([request for _, request in left], self.token_budget), num=len(left)):
                    finished.add(answer.index)
                    yield replace(answer, index=left[answer.index][0])
                return
            except Exception as error:
                # with one answer at a time only what saves time is left to give up
                if not self._repeats_smaller or not is_out_of_memory(error) or (is_alone and not self._make_room()):
                    raise
            # outside the handler, whose traceback keeps the tensors of the failed pass alive
            release_cached(self._device)
            if not is_alone:
                self.token_budget //= 2
            left = [entry for place, entry in enumerate(left) if place not in finished]


def _finished(stream: Iterator[PickedToken], *, num: int) -> Iterator[Answer]:
    tokens: list[list[int]] = [[] for _ in range(num)]
    for picked in stream:
        own = tokens[picked.index]
        if picked.token is not None:
            own.append(picked.token)
        if picked.is_last:
            yield Answer(index=picked.index, tokens=tuple(own), is_cut=picked.token is not None)
