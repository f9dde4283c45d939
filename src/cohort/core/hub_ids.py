"""What a name on the Hugging Face hub looks like."""

from __future__ import annotations

import re

__all__ = ["is_hub_id"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_id(text: str) -> bool:
    """Return whether ``text`` has the form of a hub id (``gpt2``, ``openai/gsm8k``). The network is not used."""
    return _HUB_ID.fullmatch(text) is not None
