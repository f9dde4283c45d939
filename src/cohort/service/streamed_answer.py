"""The events of one streamed answer, made from what its sequences give. It needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.service.answers import AnswerFormat, error_body, stream_event
from cohort.serving.step_output import FinishReason, StepOutput

__all__ = ["StreamedAnswer", "failure_of"]


class StreamedAnswer:
    """What a client reads of one request.

    Attributes:
        num_tokens: Tokens heard of so far.
        is_done: Whether the last event was given.
    """

    def __init__(self, form: AnswerFormat, *, num_choices: int, num_prompt_tokens: int, with_usage: bool) -> None:
        """Stream the choices of a request.

        Args:
            with_usage: Whether the stream ends with the counts of its tokens.
        """
        self._form, self._num_choices, self._num_left = form, num_choices, num_choices
        self._num_prompt_tokens, self._with_usage = num_prompt_tokens, with_usage
        self.num_tokens = 0
        self.is_done = False

    def opening(self) -> bytes:
        """Return what comes before any token."""
        pieces = [self._form.first_piece(place) for place in range(self._num_choices)]
        return b"".join([stream_event(piece) for piece in pieces if piece is not None])

    def events(self, arrived: Sequence[tuple[int, StepOutput]]) -> bytes:
        """Return the events of what has come together: pairs of a sequence's place in the request and an output.

        A sequence that failed ends the stream.
        """
        failure = None
        for _, output in arrived:
            failure = failure or failure_of(output)
            self.num_tokens += output.token is not None
            self._num_left -= output.finish is not None
        pieces = [self._form.piece(place, output) for place, output in _joined(arrived)]
        events = [stream_event(piece) for piece in pieces if piece is not None]
        if failure is not None:
            self.is_done = True
            events.append(stream_event(error_body(failure, kind="server_error", code=500)))
        elif not self._num_left:
            self.is_done = True
            if self._with_usage:
                usage = self._form.usage_piece(self.num_tokens, num_prompt_tokens=self._num_prompt_tokens)
                events.append(stream_event(usage))
            events.append(stream_event("[DONE]"))
        return b"".join(events)


def failure_of(output: StepOutput) -> str | None:
    """Return why a sequence could not be finished, for the user; None where it was, or goes on."""
    if output.finish is FinishReason.NOT_FINITE:
        return "the model's logits are not finite: this adapter has diverged"
    if output.finish is FinishReason.FAILED:
        return output.error or "the request failed"
    return None


def _joined(arrived: Sequence[tuple[int, StepOutput]]) -> list[tuple[int, StepOutput]]:
    """Return what came of each sequence as one output, where no logarithms have to be told token by token.

    Failures are left out: they are told once for the whole request.
    """
    by_place: dict[int, list[StepOutput]] = {}
    for place, output in arrived:
        if failure_of(output) is None:
            by_place.setdefault(place, []).append(output)
    if any(output.logprobs is not None for outputs in by_place.values() for output in outputs):
        return [(place, output) for place, output in arrived if failure_of(output) is None]
    return [(place, _as_one(outputs)) for place, outputs in by_place.items()]


def _as_one(outputs: Sequence[StepOutput]) -> StepOutput:
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    text = "".join([output.text for output in outputs])
    return StepOutput(number=last.number, token=last.token, text=text, finish=last.finish)
