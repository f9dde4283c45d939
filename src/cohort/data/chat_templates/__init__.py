"""Chat templates by name, for base models whose tokenizer has none: a file each, in the language of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["is_template_text", "known_templates", "template_text", "with_variables"]


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


def with_variables(template: str, variables: Mapping[str, Any]) -> str:
    """Return a template that takes ``variables`` where the caller gives none of that name."""
    defaults = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif -%}}"
        for name, value in variables.items()
    )
    return "".join(defaults) + template


def _literal(value: Any) -> str:
    """Return JSON's value as Jinja writes it."""
    return "none" if value is None else json.dumps(value)
