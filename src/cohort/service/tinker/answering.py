"""From what a call returns or raises to its HTTP answer, in the form that the Tinker client reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from cohort.core.errors import CohortError, InputError, StorageFullError
from cohort.engine.client_training.client_trainer import TrainerClosedError
from cohort.service.engine_thread import QueueFullError, ServerClosingError
from cohort.service.tinker.checkpoints import UnknownCheckpointError
from cohort.service.tinker.client_sessions import UnknownSessionError
from cohort.service.tinker.futures import GoneError
from cohort.service.tinker.journal.journal import JournalFullError, JournalLostError
from cohort.training.client_training.client_models import UnknownModelError

__all__ = ["answering"]

_STATUS_OF: dict[type[CohortError], int] = {
    InputError: 400,
    UnknownCheckpointError: 404,
    UnknownSessionError: 404,
    UnknownModelError: 404,
    GoneError: 410,
    QueueFullError: 429,
    ServerClosingError: 503,
    TrainerClosedError: 503,
    JournalLostError: 503,
    JournalFullError: 507,
    StorageFullError: 507,
}


def answering(answer: Callable[[Request, bytes], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route; a refused call has a ``detail`` and a status that says whether to send it again."""

    async def route(request: Request) -> Response:
        try:
            found = await answer(request, await request.body())
        except CohortError as error:
            status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
            return JSONResponse({"detail": str(error)}, status_code=status)
        return found if isinstance(found, Response) else JSONResponse(found)

    return route
