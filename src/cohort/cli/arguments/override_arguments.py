"""Takes ``--KEY VALUE`` pairs out of the command line, so that they can stand anywhere in it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["VERBS_WITH_OVERRIDES", "take_overrides"]

VERBS_WITH_OVERRIDES = ("tune", "check", "resume", "trials")

# Options of the verbs themselves. Typer cannot sort them out: it takes the value of an unknown option as an argument.
_OWN_OPTIONS = (
    "--output",
    "--json",
    "--debug",
    "--help",
    "--resolved",
    "--schema",
    "--warm-start",
    "--wait",
    "--on-existing",
    "--on-lost-gpu",
    "--publish",
    "--publish-as",
    "--trial",
    "--server",
)


def take_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for the verb's own parser and the overrides, each in its order.

    An override begins with two dashes and is no option of the verb. The word after it is its value, unless the override
    contains an equals sign or the word begins with two dashes too.
    """
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb not in VERBS_WITH_OVERRIDES:
        return list(arguments), []
    own: list[str] = []
    overrides: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--") or argument.partition("=")[0] in _OWN_OPTIONS or argument == "--":
            own.append(argument)
            # the value of an own option is never an override
            if argument in ("-o", "--output", "--wait", "--trial", "--server") and position < len(arguments):
                own.append(arguments[position])
                position += 1
            continue
        overrides.append(argument)
        if "=" not in argument and position < len(arguments) and not arguments[position].startswith("--"):
            overrides.append(arguments[position])
            position += 1
    return own, overrides
