"""Wrong values of options and arguments, in the words of the other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from cohort.cli.exits import error_json
from cohort.core.input_values.validation_words import allowed_value

__all__ = ["PlainGroup"]

_AS_JSON = "cohort.as_json"
_KEYS = "Only `cohort tune` and `cohort check` set keys of the task file on the command line: write it into the file."


class PlainGroup(TyperGroup):
    """A group of verbs that names the value, and what is allowed, where Typer passes on its validator's sentence."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb.

        Raises:
            typer.BadParameter: a value is wrong.
            typer.Exit: an option or argument is wrong, and --json asks for errors as JSON: it is printed.
        """
        with _in_our_words(as_json=ctx.meta[_AS_JSON]):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the group's own options, and note whether errors are to be JSON; raises as :meth:`invoke` does."""
        ctx.meta[_AS_JSON] = "--json" in args
        with _in_our_words(as_json=ctx.meta[_AS_JSON]):
            return super().parse_args(ctx, args)


@contextmanager
def _in_our_words(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # click's own errors, which versions of Typer have in different modules
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        _reword(error)
        if not as_json:
            raise
        code: int = error.exit_code  # type: ignore[attr-defined]
        print(error_json(error, words(), code=code))
        raise typer.Exit(code) from None


def _reword(error: Any) -> None:
    # earlier versions of Typer have no validator and write plain sentences themselves
    entries = getattr(error.__cause__, "errors", None)
    if entries is not None and isinstance(error, typer.BadParameter):
        error.message = "; ".join(_sentence(entry) for entry in entries())
    # the error of an option that there is not has its name
    elif "." in (getattr(error, "option_name", None) or ""):
        error.message = f"{error.message}. {_KEYS}"


def _sentence(entry: dict[str, Any]) -> str:
    allowed = allowed_value(entry)
    # a choice's sentence names the value already
    return allowed if entry["type"] == "value_error" else f"{entry['input']!r}; allowed: {allowed}"
