"""One pass of the model over what the scheduler planned, and the tokens that it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cohort.serving.bridged_passes import BridgedPassComputer
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import record_of
from cohort.serving.ranks import ServingRanks
from cohort.serving.sampler import Scores, TokenLogprobs, pick_tokens, token_logprobs
from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence

__all__ = ["NextToken", "PassRunner"]


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """The next token of a sequence; None where its logits are not finite."""

    sequence: LiveSequence
    token: int | None
    logprobs: TokenLogprobs | None = None


class PassRunner:
    """Runs planned passes: rank 0's part of them, once the other ranks know."""

    def __init__(self, computer: PassComputer | BridgedPassComputer, *, ranks: ServingRanks) -> None:
        self._computer, self._ranks = computer, ranks

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
        return [] if scores is None else _picked(sampled, scores)


def _picked(sequences: Sequence[LiveSequence], scores: Scores) -> list[NextToken]:
    picked = pick_tokens(
        scores,
        samplings=[sequence.request.sampling for sequence in sequences],
        seeds=[sequence.request.seed for sequence in sequences],
        steps=[sequence.num_generated for sequence in sequences],
    )
    logprobs: dict[int, TokenLogprobs] = {}
    asked = [
        (row, token, sequence.request.num_logprobs)
        for row, (sequence, token) in enumerate(zip(sequences, picked, strict=True))
        if sequence.request.num_logprobs is not None and token is not None
    ]
    if asked:
        found = token_logprobs(
            scores.logits_BV,
            rows=[row for row, _, _ in asked],
            temperatures=[_logprob_temperature(sequences[row]) for row, _, _ in asked],
            picked=[token for _, token, _ in asked],
            counts=[count or 0 for _, _, count in asked],
        )
        logprobs = {row: own for (row, _, _), own in zip(asked, found, strict=True)}
    return [
        NextToken(sequence=sequence, token=token, logprobs=logprobs.get(row))
        for row, (sequence, token) in enumerate(zip(sequences, picked, strict=True))
    ]


def _logprob_temperature(sequence: LiveSequence) -> float:
    request = sequence.request
    return (request.sampling.temperature or 1.0) if request.scales_logprobs else 1.0
