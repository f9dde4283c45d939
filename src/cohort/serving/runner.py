"""One pass of the model over what the scheduler planned, and the tokens that it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cohort.serving.bridged_passes import BridgedPassComputer
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import record_of
from cohort.serving.ranks import ServingRanks
from cohort.serving.sampler import AskedLogprobs, Scores, pick_with_logprobs
from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence, SequenceRequest
from cohort.serving.step_output import TokenLogprobs
from cohort.serving.training_kernel_logprobs import priced_logprobs

__all__ = ["NextToken", "PassRunner"]


# one for every token: a frozen one takes three times as long to make
@dataclass(kw_only=True, slots=True)
class NextToken:
    """The next token of a sequence; None where its logits are not finite."""

    sequence: LiveSequence
    token: int | None
    logprobs: TokenLogprobs | None = None


class PassRunner:
    """Runs planned passes: rank 0's part of them, once the other ranks know."""

    def __init__(
        self, computer: PassComputer | BridgedPassComputer, *, ranks: ServingRanks, as_trained: bool = False
    ) -> None:
        """``as_trained`` is that of :class:`~cohort.serving.engine.ServingEngine`."""
        self._computer, self._ranks, self._as_trained = computer, ranks, as_trained

    @torch.no_grad()
    def run(self, plan: StepPlan, *, meanwhile: Callable[[], None] | None = None) -> list[NextToken]:
        """Run a pass and return the next token of each sequence whose last position was in it.

        ``meanwhile`` is called once a GPU has the pass and computes it.
        """
        record, sampled = record_of(plan)
        self._ranks.announce(record)
        scores = self._computer.compute(record)
        if meanwhile is not None:
            meanwhile()
        found = [] if scores is None else _picked(sampled, scores)
        if self._as_trained and scores is not None:
            _price(found, scores)
        return found


def _picked(sequences: Sequence[LiveSequence], scores: Scores) -> list[NextToken]:
    requests = [sequence.request for sequence in sequences]
    asked = [row for row, request in enumerate(requests) if request.num_logprobs is not None]
    tokens, logprobs = pick_with_logprobs(
        scores,
        samplings=[request.sampling for request in requests],
        seeds=[request.seed for request in requests],
        steps=[sequence.num_generated for sequence in sequences],
        asked=AskedLogprobs(
            rows=asked,
            temperatures=[_logprob_temperature(requests[row]) for row in asked],
            counts=[requests[row].num_logprobs or 0 for row in asked],
        ),
    )
    found = [NextToken(sequence=sequence, token=token) for sequence, token in zip(sequences, tokens, strict=True)]
    for row, own in zip(asked, logprobs, strict=True):
        if found[row].token is not None:
            found[row].logprobs = own
    return found


def _price(found: Sequence[NextToken], scores: Scores) -> None:
    """Replace the logarithms of tokens by those that a training pass computes from the same logits."""
    asked = [
        (row, own.token, own.logprobs)
        for row, own in enumerate(found)
        if own.token is not None and own.logprobs is not None
    ]
    if not asked:
        return
    priced = priced_logprobs(
        scores.logits_BV,
        rows=[row for row, _, _ in asked],
        picked=[token for _, token, _ in asked],
        temperatures=[_logprob_temperature(found[row].sequence.request) for row, _, _ in asked],
    )
    for (_, _, logprobs), value in zip(asked, priced, strict=True):
        logprobs.picked = value


def _logprob_temperature(request: SequenceRequest) -> float:
    return (request.sampling.temperature or 1.0) if request.scales_logprobs else 1.0
