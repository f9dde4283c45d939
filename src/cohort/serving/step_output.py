"""What a pass gives each request. It needs no torch: processes without a model read it, too."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["FinishReason", "StepOutput", "TokenLogprobs"]


class FinishReason(enum.Enum):
    """Why a sequence ended. The first two values are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    NOT_FINITE = "not_finite"
    """Its logits were not finite: the adapter has diverged."""
    FAILED = "failed"
    """Its adapter could not be loaded."""


# one for every token: a frozen one takes three times as long to make
@dataclass(kw_only=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, with nothing cut; of the model's own distribution unless scaled.

    Attributes:
        picked: Of the token that was picked.
        top: Of the likeliest tokens, in descending order.
    """

    picked: float
    top: tuple[tuple[int, float], ...]


@dataclass(kw_only=True, slots=True)
class StepOutput:
    """What a step gave one request.

    Attributes:
        number: The request's.
        token: None where the sequence ended without another token.
        text: What can be shown of the answer now; empty without a decoder of text.
        logprobs: Of the token, where asked for.
        finish: Why the request is done; None while it goes on.
        error: For the user, where it failed.
    """

    number: int
    token: int | None
    text: str = ""
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    error: str | None = None
