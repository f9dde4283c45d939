"""Losses of client-driven training by name, which is their file's. A new one is a file with a ``TOKEN_OBJECTIVE``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.training.client_losses.token_objective import TokenObjective

__all__ = ["TOKEN_OBJECTIVES"]

TOKEN_OBJECTIVES: dict[str, TokenObjective] = offered_in(__name__, "TOKEN_OBJECTIVE")
