"""The routes: OpenAI's completions and chat completions, vLLM's adapter calls, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from cohort.core.errors import CohortError, InputError
from cohort.service.adapter_routes import AdapterRoutes, NotAllowedError
from cohort.service.answers import AnswerFormat, Choice, error_body, stream_event
from cohort.service.engine_thread import EngineThread, QueueFullError, ServerClosingError, Subscription
from cohort.service.metrics import RequestTimes, ServerMetrics
from cohort.service.request_guard import RequestGuard
from cohort.service.schema import ChatRequest, CompletionRequest, GenerationRequest, parse_body
from cohort.service.served_base import OtherBaseError
from cohort.service.served_model import PreparedRequest, ServedModel
from cohort.service.settings import ServerSettings
from cohort.serving.adapter_registry import NameTakenError, UnknownAdapterError
from cohort.serving.engine import StepOutput
from cohort.serving.sequence import FinishReason
from cohort.version import __version__

__all__ = ["build_app"]

_RETRY_SECONDS = "1"
# fewer streams than this write each token when it comes
_FEW_STREAMS = 32
_SECONDS_A_STREAM, _MOST_GATHERING_SECONDS = 0.0002, 0.05
_STATUS_OF = {
    NotAllowedError: 403,
    OtherBaseError: 412,
    InputError: 400,
    UnknownAdapterError: 404,
    NameTakenError: 409,
    QueueFullError: 429,
    ServerClosingError: 503,
}
_KIND_OF = {
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class GenerationFailedError(CohortError):
    """The request was accepted and could not be finished."""


def build_app(
    model: ServedModel,
    thread: EngineThread,
    *,
    settings: ServerSettings,
    metrics: ServerMetrics,
    tinker: APIRouter | None = None,
) -> FastAPI:
    """Return the application of one served model, whose engine's thread runs.

    Args:
        tinker: Further routes, for clients that train.
    """
    app = FastAPI(
        title="Cohort", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    completions = _Completions(model, thread, metrics)
    adapters = AdapterRoutes(model, settings)
    thread.on_step = metrics.count_step

    @app.get("/health")
    async def health() -> Response:
        is_well = thread.is_alive and not thread.is_closing
        return Response(status_code=200 if is_well else 503)

    @app.get("/metrics")
    async def numbers() -> Response:
        return PlainTextResponse(metrics.text(thread), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(adapters.listed())

    @app.post("/v1/completions")
    async def completion(request: Request) -> Response:
        asked = parse_body(CompletionRequest, await request.body())
        prepared = await asyncio.to_thread(model.prepare_completion, asked)
        return await completions.answer(request, asked, prepared, is_chat=False)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = parse_body(ChatRequest, await request.body())
        prepared = await asyncio.to_thread(model.prepare_chat, asked)
        return await completions.answer(request, asked, prepared, is_chat=True)

    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> Response:
        return PlainTextResponse(await asyncio.to_thread(adapters.load, await request.body()))

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: Request) -> Response:
        return PlainTextResponse(await asyncio.to_thread(adapters.unload, await request.body()))

    if tinker is not None:
        app.include_router(tinker)
    _answer_errors(app)
    limits = settings.limits
    app.add_middleware(
        RequestGuard,
        api_keys=settings.api_keys,
        max_body_bytes=limits.max_body_bytes,
        count_answer=metrics.count_answer,
    )
    return app


def _answer_errors(app: FastAPI) -> None:
    async def refused(_: Request, error: Exception) -> Response:
        status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
        return _error(str(error), status)

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error(str(error.detail), error.status_code)

    app.add_exception_handler(CohortError, refused)
    app.add_exception_handler(HTTPException, http)


def _error(message: str, status: int) -> JSONResponse:
    headers = {"Retry-After": _RETRY_SECONDS} if status in (429, 503) else None
    kind = _KIND_OF.get(status, "invalid_request_error")
    return JSONResponse(error_body(message, kind=kind, code=status), status_code=status, headers=headers)


class _Completions:
    """Answers to prepared requests, whole or streamed."""

    def __init__(self, model: ServedModel, thread: EngineThread, metrics: ServerMetrics) -> None:
        self._model, self._thread, self._metrics = model, thread, metrics

    async def answer(
        self, request: Request, asked: GenerationRequest, prepared: PreparedRequest, *, is_chat: bool
    ) -> Response:
        """Submit the sequences and answer; a client that leaves ends them.

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
        times = self._metrics.timed()
        subscription = self._thread.submit(prepared.sequences, loop=asyncio.get_running_loop())
        self._metrics.count_prompt(prepared.num_prompt_tokens)
        if asked.stream:
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = self._events(subscription, prepared, form, times, with_usage=with_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        collecting = asyncio.ensure_future(self._collect(subscription, prepared, times))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                # the client has left: this is for the count of answers alone
                return Response(status_code=499)
            choices = collecting.result()
        finally:
            self._thread.cancel(subscription)
            collecting.cancel()
            leaving.cancel()
        return JSONResponse(form.whole(choices, num_prompt_tokens=prepared.num_prompt_tokens))

    async def _collect(
        self, subscription: Subscription, prepared: PreparedRequest, times: RequestTimes
    ) -> list[Choice]:
        choices = [Choice() for _ in prepared.sequences]
        num_left = len(choices)
        while num_left:
            place, output = await subscription.outputs.get()
            times.heard(place, output)
            if (failure := _failure(output.finish, output.error)) is not None:
                raise GenerationFailedError(failure)
            choices[place].add(output)
            num_left -= output.finish is not None
        return choices

    async def _events(
        self,
        subscription: Subscription,
        prepared: PreparedRequest,
        form: AnswerFormat,
        times: RequestTimes,
        *,
        with_usage: bool,
    ) -> AsyncIterator[bytes]:
        choices = [Choice() for _ in prepared.sequences]
        num_left = len(choices)
        try:
            for place in range(num_left):
                if (opening := form.first_piece(place)) is not None:
                    yield stream_event(opening)
            has_begun = False
            while num_left:
                arrived = [await subscription.outputs.get()]
                if has_begun and (seconds := _gathering_seconds(self._thread.num_open)):
                    await asyncio.sleep(seconds)
                while not subscription.outputs.empty():
                    arrived.append(subscription.outputs.get_nowait())
                failure = None
                for place, output in arrived:
                    times.heard(place, output)
                    failure = failure or _failure(output.finish, output.error)
                    choices[place].add(output)
                    num_left -= output.finish is not None
                events = [
                    stream_event(piece)
                    for place, output in _joined(arrived)
                    if _failure(output.finish, output.error) is None
                    and (piece := form.piece(place, output)) is not None
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


def _joined(arrived: Sequence[tuple[int, StepOutput]]) -> list[tuple[int, StepOutput]]:
    """Return what came of each sequence as one output, where no logarithms have to be told token by token."""
    joined: dict[int, StepOutput] = {}
    for place, output in arrived:
        if output.logprobs is not None:
            return list(arrived)
        before = joined.get(place)
        if before is None or output.error is not None:
            joined[place] = output
        else:
            joined[place] = StepOutput(
                number=output.number, token=output.token, text=before.text + output.text, finish=output.finish
            )
    return list(joined.items())


def _gathering_seconds(num_open: int) -> float:
    """Return how long a stream that has begun gathers events before it writes them, by the sequences that are open.

    A write costs the process far more than an event, and what writes take the passes wait for.
    """
    return 0.0 if num_open < _FEW_STREAMS else min(_MOST_GATHERING_SECONDS, num_open * _SECONDS_A_STREAM)


def _failure(finish: FinishReason | None, error: str | None) -> str | None:
    if finish is FinishReason.NOT_FINITE:
        return "the model's logits are not finite: this adapter has diverged"
    if finish is FinishReason.FAILED:
        return error or "the request failed"
    return None


async def _left(request: Request) -> None:
    """Return once the client has closed the connection."""
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return
