"""Answers to prepared requests, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from cohort.core.errors import CohortError
from cohort.service.access.request_guard import tenant_of
from cohort.service.answers import AnswerFormat, Choice
from cohort.service.engine_thread import EngineThread
from cohort.service.metrics import ServerMetrics
from cohort.service.request_times import RequestTimes
from cohort.service.schema import GenerationRequest
from cohort.service.served_model import PreparedRequest, ServedModel
from cohort.service.streamed_answer import StreamedAnswer, failure_of
from cohort.service.streams.lent_connection import connection_of
from cohort.service.streams.written_response import WrittenResponse
from cohort.service.subscription import Subscription

__all__ = ["CompletionAnswers", "GenerationFailedError"]

# fewer streams than this write each token when it comes
_FEW_STREAMS = 32
_STREAM_HEADERS = {"Cache-Control": "no-cache"}
_SECONDS_A_STREAM, _MOST_GATHERING_SECONDS = 0.0002, 0.05


class GenerationFailedError(CohortError):
    """The request was accepted and could not be finished."""


class CompletionAnswers:
    """What one model's engine answers with."""

    def __init__(self, model: ServedModel, thread: EngineThread, metrics: ServerMetrics) -> None:
        self._model, self._thread, self._metrics = model, thread, metrics
        if thread.writer is not None:
            thread.writer.on_times = metrics.count_written

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
        if asked.stream:
            written = self._written(request, asked, prepared, is_chat=is_chat, on_end=on_end)
            return written or self._streamed(request, asked, prepared, is_chat=is_chat, on_end=on_end)
        form = self._form(asked, prepared, is_chat=is_chat)
        times, choices = self._metrics.timed(), [Choice() for _ in prepared.sequences]
        subscription = self._submitted(request, prepared)
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
            on_end(sum(len(choice.tokens) for choice in choices))
        return JSONResponse(form.whole(choices, num_prompt_tokens=prepared.num_prompt_tokens))

    def _form(self, asked: GenerationRequest, prepared: PreparedRequest, *, is_chat: bool) -> AnswerFormat:
        return AnswerFormat(
            model=asked.model,
            is_chat=is_chat,
            with_logprobs=_with_logprobs(prepared),
            token_text=self._model.token_text,
        )

    def _submitted(self, request: Request, prepared: PreparedRequest) -> Subscription:
        loop = asyncio.get_running_loop()
        subscription = self._thread.submit(prepared.sequences, loop=loop, tenant=tenant_of(request))
        self._metrics.count_prompt(prepared.num_prompt_tokens)
        return subscription

    def _written(
        self,
        request: Request,
        asked: GenerationRequest,
        prepared: PreparedRequest,
        *,
        is_chat: bool,
        on_end: Callable[[int], None],
    ) -> Response | None:
        """Return a stream that another process writes; None where none does, or not to such a connection."""
        writer, connection = self._thread.writer, connection_of(request.scope)
        if writer is None or connection is None:
            return None
        makes_texts = not prepared.sequences[0].stop_strings
        stream = writer.begin(
            loop=asyncio.get_running_loop(),
            num_choices=len(prepared.sequences),
            makes_texts=makes_texts,
            model=asked.model,
            is_chat=is_chat,
            with_logprobs=_with_logprobs(prepared),
            num_prompt_tokens=prepared.num_prompt_tokens,
            with_usage=_with_usage(asked),
        )
        if stream is None:
            return None
        sequences = [replace(each, needs_text=not makes_texts) for each in prepared.sequences]
        try:
            self._thread.submit_to(stream, sequences, tenant=tenant_of(request))
        except CohortError:
            writer.forget(stream)
            raise
        self._metrics.count_prompt(prepared.num_prompt_tokens)

        def end() -> None:
            self._thread.cancel(stream)
            on_end(stream.num_tokens)

        return WrittenResponse(stream, writer=writer, connection=connection, headers=_STREAM_HEADERS, on_end=end)

    def _streamed(
        self,
        request: Request,
        asked: GenerationRequest,
        prepared: PreparedRequest,
        *,
        is_chat: bool,
        on_end: Callable[[int], None],
    ) -> Response:
        """Return a stream that this process writes."""
        answer = StreamedAnswer(
            self._form(asked, prepared, is_chat=is_chat),
            num_choices=len(prepared.sequences),
            num_prompt_tokens=prepared.num_prompt_tokens,
            with_usage=_with_usage(asked),
        )
        times = self._metrics.timed()
        events = self._events(self._submitted(request, prepared), answer, times, on_end=on_end)
        return StreamingResponse(events, media_type="text/event-stream", headers=_STREAM_HEADERS)

    async def _collect(self, subscription: Subscription, choices: list[Choice], times: RequestTimes) -> None:
        num_left = len(choices)
        while num_left:
            arrived = await subscription.arrived()
            times.heard(arrived)
            for place, output in arrived:
                if (failure := failure_of(output)) is not None:
                    raise GenerationFailedError(failure)
                choices[place].add(output)
                num_left -= output.finish is not None

    async def _events(
        self,
        subscription: Subscription,
        answer: StreamedAnswer,
        times: RequestTimes,
        *,
        on_end: Callable[[int], None],
    ) -> AsyncIterator[bytes]:
        try:
            if opening := answer.opening():
                yield opening
            has_begun = False
            while not answer.is_done:
                if has_begun and (seconds := _gathering_seconds(self._thread.num_open)):
                    await asyncio.sleep(seconds)
                arrived = await subscription.arrived()
                times.heard(arrived)
                if events := answer.events(arrived):
                    has_begun = True
                    yield events
        finally:
            # also where the client has left in the middle
            self._thread.cancel(subscription)
            on_end(answer.num_tokens)


def _with_logprobs(prepared: PreparedRequest) -> bool:
    return prepared.sequences[0].num_logprobs is not None


def _with_usage(asked: GenerationRequest) -> bool:
    return asked.stream_options is not None and asked.stream_options.include_usage


def _gathering_seconds(num_open: int) -> float:
    """Return how long a stream that has begun gathers events before it writes them, by the sequences that are open.

    A write costs the process far more than an event, and what writes take the passes wait for.
    """
    return 0.0 if num_open < _FEW_STREAMS else min(_MOST_GATHERING_SECONDS, num_open * _SECONDS_A_STREAM)


async def _left(request: Request) -> None:
    """Return once the client has closed the connection."""
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
