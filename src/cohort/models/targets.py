"""Which linears a task adapts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place

__all__ = ["select_linears"]

ALL_LINEAR = "all-linear"


def select_linears(targets: str | Sequence[str], *, paths: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``paths`` that ``targets`` select, in their order.

    Args:
        targets: ``all-linear`` (every linear of the layers, never the head), one name or a list of names. As in PEFT a
            name selects the modules whose path is that name or ends with ``.`` and that name.
        paths: Full paths of the adaptable linears.

    Raises:
        InputError: a name selects nothing, all such names at once; or no name is given.
    """
    paths = tuple(paths)
    if targets == ALL_LINEAR or list(targets) == [ALL_LINEAR]:
        return paths
    names = [targets] if isinstance(targets, str) else list(targets)
    suffixes = sorted({path.rsplit(".", 1)[-1] for path in paths})
    allowed = f"{ALL_LINEAR}, or a list of {', '.join(suffixes)}"
    where = Place(key=("lora", "target_modules"))
    if not names:
        raise InputError(Problem(where=where, found="an empty list", allowed=allowed, hint="Name at least one module."))
    problems, chosen = [], set()
    for name in names:
        matches = {path for path in paths if path == name or path.endswith(f".{name}")}
        chosen |= matches
        if not matches:
            nearest = difflib.get_close_matches(name, [*suffixes, ALL_LINEAR, *paths], n=3)
            problems.append(
                Problem(
                    where=where,
                    found=repr(name),
                    allowed=allowed,
                    hint=f"Did you mean {' or '.join(nearest)}?" if nearest else "Choose from these.",
                )
            )
    if problems:
        raise InputError(problems)
    return tuple(path for path in paths if path in chosen)
