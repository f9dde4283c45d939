"""Answers to prepared requests, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from cohort.core.errors import CohortError
from cohort.service.access.request_guard import tenant_of
from cohort.service.answers import AnswerFormat, Choice, error_body, stream_event
from cohort.service.engine_thread import EngineThread
from cohort.service.metrics import RequestTimes, ServerMetrics
from cohort.service.schema import GenerationRequest
from cohort.service.served_model import PreparedRequest, ServedModel
from cohort.service.subscription import Subscription
from cohort.serving.engine import StepOutput
from cohort.serving.sequence import FinishReason

__all__ = ["CompletionAnswers", "GenerationFailedError"]

# fewer streams than this write each token when it comes
_FEW_STREAMS = 32
_SECONDS_A_STREAM, _MOST_GATHERING_SECONDS = 0.0002, 0.05


class GenerationFailedError(CohortError):
    """The request was accepted and could not be finished."""


class CompletionAnswers:
    """What one model's engine answers with."""

    def __init__(self, model: ServedModel, thread: EngineThread, metrics: ServerMetrics) -> None:
        self._model, self._thread, self._metrics = model, thread, metrics

    async def answer(
        self,
        request: Request,
        asked: GenerationRequest,
        prepared: PreparedRequest,
        *,
        is_chat: bool,
        on_end: Callable[[int], None] = lambda _: None,
    ) -> Response:
        """Submit the sequences and answer; a client that leaves ends them.

        Args:
            on_end: Hears how many tokens were generated, also for a client that has left; it must not wait.

        Raises:
            QueueFullError, ServerClosingError: see :meth:`EngineThread.submit`.
            GenerationFailedError: a sequence could not be finished.
        """
        form = AnswerFormat(
            model=asked.model,
            is_chat=is_chat,
            with_logprobs=prepared.sequences[0].num_logprobs is not None,
            token_text=self._model.token_text,
        )
        times, choices = self._metrics.timed(), [Choice() for _ in prepared.sequences]
        tenant = tenant_of(request)
        subscription = self._thread.submit(prepared.sequences, loop=asyncio.get_running_loop(), tenant=tenant)
        self._metrics.count_prompt(prepared.num_prompt_tokens)
        if asked.stream:
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = self._events(subscription, prepared, choices, form, times, with_usage=with_usage, on_end=on_end)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        collecting = asyncio.ensure_future(self._collect(subscription, choices, times))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                # the client has left: this is for the count of answers alone
                return Response(status_code=499)
            collecting.result()
        finally:
            self._thread.cancel(subscription)
            collecting.cancel()
            leaving.cancel()
            on_end(_num_tokens(choices))
        return JSONResponse(form.whole(choices, num_prompt_tokens=prepared.num_prompt_tokens))

    async def _collect(self, subscription: Subscription, choices: list[Choice], times: RequestTimes) -> None:
        num_left = len(choices)
        while num_left:
            arrived = await subscription.arrived()
            times.heard(arrived)
            for place, output in arrived:
                if (failure := _failure(output)) is not None:
                    raise GenerationFailedError(failure)
                choices[place].add(output)
                num_left -= output.finish is not None

    async def _events(
        self,
        subscription: Subscription,
        prepared: PreparedRequest,
        choices: list[Choice],
        form: AnswerFormat,
        times: RequestTimes,
        *,
        with_usage: bool,
        on_end: Callable[[int], None],
    ) -> AsyncIterator[bytes]:
        num_left = len(choices)
        try:
            for place in range(num_left):
                if (opening := form.first_piece(place)) is not None:
                    yield stream_event(opening)
            has_begun = False
            while num_left:
                if has_begun and (seconds := _gathering_seconds(self._thread.num_open)):
                    await asyncio.sleep(seconds)
                arrived = await subscription.arrived()
                times.heard(arrived)
                failure = None
                for place, output in arrived:
                    failure = failure or _failure(output)
                    choices[place].add(output)
                    num_left -= output.finish is not None
                events = [
                    stream_event(piece)
                    for place, output in _joined(arrived)
                    if (piece := form.piece(place, output)) is not None
                ]
                if failure is not None:
                    yield b"".join([*events, stream_event(error_body(failure, kind="server_error", code=500))])
                    return
                if events:
                    has_begun = True
                    yield b"".join(events)
            if with_usage:
                yield stream_event(form.usage_piece(choices, num_prompt_tokens=prepared.num_prompt_tokens))
            yield stream_event("[DONE]")
        finally:
            # also where the client has left in the middle
            self._thread.cancel(subscription)
            on_end(_num_tokens(choices))


def _joined(arrived: Sequence[tuple[int, StepOutput]]) -> list[tuple[int, StepOutput]]:
    """Return what came of each sequence as one output, where no logarithms have to be told token by token.

    Failures are left out: they are told once for the whole request.
    """
    by_place: dict[int, list[StepOutput]] = {}
    for place, output in arrived:
        if _failure(output) is None:
            by_place.setdefault(place, []).append(output)
    if any(output.logprobs is not None for outputs in by_place.values() for output in outputs):
        return [(place, output) for place, output in arrived if _failure(output) is None]
    return [(place, _as_one(outputs)) for place, outputs in by_place.items()]


def _as_one(outputs: Sequence[StepOutput]) -> StepOutput:
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    text = "".join([output.text for output in outputs])
    return StepOutput(number=last.number, token=last.token, text=text, finish=last.finish)


def _num_tokens(choices: list[Choice]) -> int:
    return sum(len(choice.tokens) for choice in choices)


def _gathering_seconds(num_open: int) -> float:
    """Return how long a stream that has begun gathers events before it writes them, by the sequences that are open.

    A write costs the process far more than an event, and what writes take the passes wait for.
    """
    return 0.0 if num_open < _FEW_STREAMS else min(_MOST_GATHERING_SECONDS, num_open * _SECONDS_A_STREAM)


def _failure(output: StepOutput) -> str | None:
    if output.finish is FinishReason.NOT_FINITE:
        return "the model's logits are not finite: this adapter has diverged"
    if output.finish is FinishReason.FAILED:
        return output.error or "the request failed"
    return None


async def _left(request: Request) -> None:
    """Return once the client has closed the connection."""
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
