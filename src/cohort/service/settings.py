"""What a server is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ServerLimits", "ServerSettings"]


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a client may ask for; beyond it the answer is a status of 4xx.

    Attributes:
        max_waiting: Most requests that are accepted and not finished; a further one gets 429.
        max_body_bytes: Most bytes of a request's body; beyond it 413.
        max_prompts: Most prompts of one completion request, times its ``n``.
        drain_seconds: After SIGTERM, running requests have this long to finish.
    """

    max_waiting: int = 1024
    max_body_bytes: int = 8 << 20
    max_prompts: int = 256
    drain_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_body_bytes", "max_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The HTTP side of a server.

    Attributes:
        api_keys: Tokens that open ``/v1``; none leaves it open.
        lora_root: Adapters are loaded at run time from below this folder only; None refuses to load any.
        limits: What a client may ask for.
    """

    api_keys: tuple[str, ...] = ()
    lora_root: Path | None = None
    limits: ServerLimits = ServerLimits()
