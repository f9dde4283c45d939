"""Whose a session or a checkpoint is: the API key it was made with. To other keys it is unknown."""

from __future__ import annotations

from fastapi import Request

__all__ = ["ANYONE", "asker_of", "may_know"]

ANYONE = ""
"""The server itself, or anyone where no key is asked for."""


def asker_of(request: Request) -> str:
    """Return what a request's key is known by: a part of its SHA-256."""
    return str(getattr(request.state, "key_id", ANYONE))


def may_know(asker: str, owner: str) -> bool:
    """Whether ``asker`` may know of what is ``owner``'s. What was made while no key was asked for is anyone's."""
    return asker == ANYONE or owner in (ANYONE, asker)
