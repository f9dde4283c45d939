"""Answers that are errors, in OpenAI's form: a status, a type, and which parameter was wrong."""

from __future__ import annotations

from typing import Any

from cohort.core.errors import CohortError

__all__ = ["ServiceError", "refusal_body", "unknown"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    507: "server_error",
}


class ServiceError(CohortError):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        param: The parameter that is wrong; None where it is none.
        code: A word that programs can rely on.
        retry_seconds: When to try again; None says nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_seconds = status, param, code, retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_seconds is None else {"Retry-After": f"{max(1, round(self.retry_seconds))}"}
        # a client that still sends would never stop: it is hung up on
        return {**headers, "Connection": "close"} if self.status == 413 else headers

    @property
    def body(self) -> dict[str, Any]:
        return refusal_body(str(self), status=self.status, param=self.param, code=self.code)


def refusal_body(message: str, *, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def unknown(what: str, given: str, *, param: str) -> ServiceError:
    """Return the error of an id that does not exist for the caller: one of another project reads the same."""
    return ServiceError(f"No such {what}: {given[:200]!r}", status=404, param=param, code=f"{what}_not_found")
