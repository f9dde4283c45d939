"""Which status and which of OpenAI's bodies an error becomes. What is no error of ours says nothing of its cause."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from cohort.core.errors import CohortError, InputError, StorageFullError
from cohort.core.source_location import dotted
from cohort.service.access.refusals import ServiceError
from cohort.service.engine_thread import QueueFullError, ServerClosingError
from cohort.serving.adapter_registry import UnknownAdapterError
from cohort.store.errors import (
    IllegalTransitionError,
    LeaseLostError,
    NameTakenError,
    QuotaExceededError,
    StorageFull,
    StoreUnavailable,
    TooLargeError,
    UnknownIdError,
)

__all__ = ["add_error_answers", "as_refusal"]

_log = logging.getLogger(__name__)
_BUSY_SECONDS, _FULL_SECONDS = 1.0, 60.0


def as_refusal(error: Exception) -> ServiceError:
    """Return what a client gets to know of an error."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, UnknownIdError):
        code = f"{error.kind.replace(' ', '_').replace('-', '_')}_not_found"
        return ServiceError(f"No such {error.kind}: {error.id[:200]!r}", status=404, param="id", code=code)
    if isinstance(error, UnknownAdapterError):
        # its words list adapters, which may be another tenant's
        return ServiceError("The model does not exist.", status=404, param="model", code="model_not_found")
    if isinstance(error, IllegalTransitionError):
        return ServiceError(str(error), code=f"job_is_{error.status}")
    if isinstance(error, QuotaExceededError):
        return ServiceError(str(error), status=429, code="insufficient_quota", retry_seconds=_FULL_SECONDS)
    if isinstance(error, TooLargeError):
        return ServiceError(str(error), status=413, param="file", code="file_too_large")
    if isinstance(error, StorageFull | StorageFullError):
        text = "The server has no room left for this. What it acknowledged before is safe."
        return ServiceError(text, status=507, code="storage_full", retry_seconds=_FULL_SECONDS)
    if isinstance(error, StoreUnavailable):
        text = "The server's database or storage cannot be reached now. What it acknowledged before is safe."
        return ServiceError(text, status=503, code="store_unavailable", retry_seconds=error.retry_after_seconds)
    if isinstance(error, LeaseLostError | NameTakenError):
        return ServiceError(str(error), status=409, code="conflict")
    if isinstance(error, QueueFullError):
        return ServiceError(str(error), status=429, code="too_many_requests", retry_seconds=_BUSY_SECONDS)
    if isinstance(error, ServerClosingError):
        return ServiceError(str(error), status=503, code="closing", retry_seconds=_BUSY_SECONDS)
    if isinstance(error, InputError):
        keys = [dotted(problem.where.key) for problem in error.problems if problem.where.key]
        return ServiceError(str(error), param=keys[0] if keys else None, code="invalid_value")
    if isinstance(error, HTTPException):
        return ServiceError(str(error.detail), status=error.status_code)
    if not isinstance(error, CohortError):
        _log.error("a request failed", exc_info=error)
    return ServiceError("The server failed; its log says why.", status=500, code="server_error")


def add_error_answers(app: FastAPI) -> None:
    """Answer every error of a route in OpenAI's form."""

    async def refused(_: Request, error: Exception) -> Response:
        refusal = as_refusal(error)
        headers = refusal.headers
        if refusal.code == "insufficient_quota":
            # OpenAI's client would try again within seconds
            headers["x-should-retry"] = "false"
        return JSONResponse(refusal.body, status_code=refusal.status, headers=headers)

    for kind in (CohortError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)
