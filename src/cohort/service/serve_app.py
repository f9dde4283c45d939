"""The application of `cohort serve`: the routes of one served model, its health and its metrics, and its errors."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from cohort.core.errors import CohortError, InputError
from cohort.service.access.request_guard import RequestGuard
from cohort.service.adapter_routes import AdapterRoutes, NotAllowedError, adapter_routes
from cohort.service.answers import error_body
from cohort.service.completion_answers import CompletionAnswers
from cohort.service.completion_routes import completion_routes
from cohort.service.engine_thread import EngineThread, QueueFullError, ServerClosingError
from cohort.service.metrics import ServerMetrics
from cohort.service.served_base import OtherBaseError
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServerSettings
from cohort.serving.adapter_registry import NameTakenError, UnknownAdapterError
from cohort.version import __version__

__all__ = ["build_app"]

_RETRY_SECONDS = "1"
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
    completions = CompletionAnswers(model, thread, metrics)
    thread.on_step = metrics.count_step

    @app.get("/health")
    async def health() -> Response:
        is_well = thread.is_alive and not thread.is_closing
        return Response(status_code=200 if is_well else 503)

    @app.get("/metrics")
    async def numbers() -> Response:
        return PlainTextResponse(metrics.text(thread), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.include_router(completion_routes(model, completions))
    app.include_router(adapter_routes(AdapterRoutes(model, settings)))
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
