"""What the file of a format of frozen weights says of itself, read without torch, where task files are checked."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.core.registry import DeclaredRegistry

__all__ = ["FORMAT_DECLARATIONS", "PLAIN_NAME", "FormatDeclaration"]

PLAIN_NAME = "none"


@dataclass(frozen=True, kw_only=True)
class FormatDeclaration:
    """What is known of a format before it is imported.

    Attributes:
        name: What ``quantization`` calls it.
        summary: What it does, in a few words for `cohort doctor` and the task file's schema.
    """

    name: str
    summary: str


FORMAT_DECLARATIONS = DeclaredRegistry(
    kind=FormatDeclaration,
    noun="weight format",
    package="cohort.models.weight_formats.kinds",
    constant="FORMAT",
    group="cohort.weight_formats",
    default=PLAIN_NAME,
    words={"FormatDeclaration": FormatDeclaration},
)
