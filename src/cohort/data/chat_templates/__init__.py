"""Chat templates by name, for base models whose tokenizer has none: a file each, in the language of transformers."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_template_text", "known_templates", "template_text"]


def known_templates() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.jinja")))


def is_template_text(value: str) -> bool:
    """Return whether ``value`` is a template itself and no name or path."""
    return "{%" in value or "{{" in value


def template_text(value: str) -> str:
    """Return the template that a known name or the text of a template means."""
    if is_template_text(value):
        return value
    return (Path(__file__).parent / f"{value}.jinja").read_text(encoding="utf-8")
