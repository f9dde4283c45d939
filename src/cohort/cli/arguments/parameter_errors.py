"""Wrong values of options and arguments, in the words of the other errors."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from cohort.core.input_values.validation_words import allowed_value

__all__ = ["PlainGroup"]

_KEYS = "Only `cohort tune` and `cohort check` set keys of the task file on the command line: write it into the file."


class PlainGroup(TyperGroup):
    """A group of verbs that names the value, and what is allowed, where Typer passes on its validator's sentence."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb.

        Raises:
            typer.BadParameter: a value is wrong.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # earlier versions of Typer have no validator and write plain sentences themselves
            entries = getattr(error.__cause__, "errors", None)
            if entries is not None:
                error.message = "; ".join(_sentence(entry) for entry in entries())
            raise
        except Exception as error:
            # click's NoSuchOption, which versions of Typer have in different modules
            if "." in (getattr(error, "option_name", None) or ""):
                error.message = f"{error.message}. {_KEYS}"  # type: ignore[attr-defined]
            raise


def _sentence(entry: dict[str, Any]) -> str:
    allowed = allowed_value(entry)
    # a choice's sentence names the value already
    return allowed if entry["type"] == "value_error" else f"{entry['input']!r}; allowed: {allowed}"
