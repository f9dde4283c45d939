"""What a name on the Hugging Face hub looks like."""

from __future__ import annotations

import re

__all__ = ["is_hub_id", "is_model_id", "split_revision"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# a branch, a tag, a commit or refs/pr/1
_REVISION = re.compile(r"[\w.-]+(/[\w.-]+)*")


def is_hub_id(text: str) -> bool:
    """Return whether ``text`` has the form of a hub id (``gpt2``, ``openai/gsm8k``). The network is not used."""
    return _HUB_ID.fullmatch(text) is not None


def is_model_id(text: str) -> bool:
    """Return whether ``text`` has the form of a model of the hub: an id, or ``OWNER/NAME@REVISION``."""
    return is_hub_id(split_revision(text)[0])


def split_revision(text: str) -> tuple[str, str | None]:
    """Return the id and the revision of ``OWNER/NAME@REVISION``; the text itself and None where it is none."""
    name, mark, revision = text.partition("@")
    if mark and is_hub_id(name) and _REVISION.fullmatch(revision):
        return name, revision
    return text, None
