"""What is wrong with values of the dataset section: columns, templates, variables, shares and weights."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

from cohort.core.setting_fields import (
    MOST_NUMBER,
    Refusal,
    number_words,
)
from cohort.data.chat_templates import is_template_text, known_templates

__all__ = [
    "COLUMNS_ALLOWED",
    "VARIABLES_ALLOWED",
    "CANONICAL_COLUMNS",
    "SHARE_ALLOWED",
    "WEIGHTS_ALLOWED",
    "chat_template_refusals",
    "column_refusals",
    "quoted_share",
    "share_refusals",
    "template_fields",
    "template_refusals",
    "variable_refusals",
    "weight_refusal",
    "weight_refusals",
]

CANONICAL_COLUMNS = (
    "messages",
    "conversations",
    "tools",
    "system",
    "instruction",
    "input",
    "output",
    "prompt",
    "completion",
    "text",
    "chosen",
    "rejected",
    "preferred_completion",
    "non_preferred_completion",
    "choices",
    "label",
)
SHARE_ALLOWED = "a file, or a share above 0 and below 1"
WEIGHTS_ALLOWED = "numbers above 0, one for each entry of train"
COLUMNS_ALLOWED = "a mapping such as {prompt: question, completion: answer}"
VARIABLES_ALLOWED = "a mapping such as {enable_thinking: false}"
_QUOTED_SHARE = re.compile(r"\s*(\d*\.?\d+)\s*(%?)\s*")


def quoted_share(value: object) -> float | None:
    """Return the share that a text such as ``10%`` or ``0.1`` means; None for anything else, which may be a file."""
    found = _QUOTED_SHARE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    share = float(found.group(1)) / (100 if found.group(2) else 1)
    return share if 0 < share < 1 else None


def share_refusals(value: float) -> tuple[Refusal, ...]:
    """Return what is wrong with a share of the training rows."""
    if not isinstance(value, bool) and 0 < value < 1:
        return ()
    hint = "Write a share such as 0.1, or name a validation file."
    if not isinstance(value, bool) and 1 < value < 100:
        hint = f"Write {value / 100:g} for {value:g} %, or name a validation file."
    return (Refusal(found=repr(value), allowed=SHARE_ALLOWED, hint=hint),)


def column_refusals(value: object) -> Iterator[Refusal]:
    if not isinstance(value, Mapping):
        yield Refusal(
            found=repr(value), allowed=COLUMNS_ALLOWED, hint="Write the keys below it, indented; in Python a dict."
        )
        return
    for name, column in value.items():
        if name not in CANONICAL_COLUMNS:
            hint = "Put our name left and the file's name right: {prompt: question, completion: answer}."
            found = f"the column {name!r}"
            yield Refusal(found=found, allowed=", ".join(CANONICAL_COLUMNS), hint=hint, at=(name,))
        elif not isinstance(column, str):
            hint = "Write the name of a column of the file."
            yield Refusal(found=repr(column), allowed=COLUMNS_ALLOWED, hint=hint, at=(name,))


def template_refusals(value: object) -> Iterator[Refusal]:
    if value is None:
        return
    allowed, why = "text with {column} fields; a literal brace is written {{ or }}", ""
    if isinstance(value, str):
        try:
            template_fields(value)
        except ValueError as error:
            why = f" ({error})"
        else:
            return
    hint = 'Write for example "Question: {question}\\nAnswer:\\n".'
    if isinstance(value, dict):
        why = ", which YAML reads as a mapping"
        hint = f"Put quotes around it that YAML sees (on a command line within those of the shell). {hint}"
    yield Refusal(found=f"{value!r}{why}", allowed=allowed, hint=hint)


def chat_template_refusals(value: object) -> Iterator[Refusal]:
    known = known_templates()
    if value is None or (isinstance(value, str) and (value in known or is_template_text(value))):
        return
    near = get_close_matches(str(value).lower(), known, n=1)
    hint = f"Did you mean {near[0]}?" if near else "Name a file that there is, or one of these."
    yield Refusal(found=repr(value), allowed=f"a file, or one of {', '.join(known)}", hint=hint)


def variable_refusals(value: object) -> Iterator[Refusal]:
    if not isinstance(value, Mapping):
        hint = "Write the variables below it, indented; in Python a dict."
        yield Refusal(found=repr(value), allowed=VARIABLES_ALLOWED, hint=hint)
        return
    for name, own in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            hint = "Write a name that the template reads."
            yield Refusal(found=f"the variable {name!r}", allowed=VARIABLES_ALLOWED, hint=hint, at=(str(name),))
        elif own is not None and not isinstance(own, bool | int | float | str):
            hint = "Write one value."
            yield Refusal(found=repr(own), allowed="true, false, a number or text", hint=hint, at=(name,))


def weight_refusals(value: object) -> Iterator[Refusal]:
    if value is None:
        return
    if not isinstance(value, list | tuple) or not value:
        hint = "Write one weight for each entry of dataset.train."
        yield Refusal(found=repr(value), allowed=f"null, or a list of {WEIGHTS_ALLOWED}", hint=hint)
        return
    for index, weight in enumerate(value):
        if (refusal := weight_refusal(weight)) is not None:
            yield replace(refusal, at=(index,))


def weight_refusal(weight: object) -> Refusal | None:
    """Return what is wrong with the weight of a data set."""
    # compared and not asked: a whole number may be larger than any float
    if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight <= MOST_NUMBER:
        return None
    hint = "Write a number such as 0.3; remove a data set that is not to be trained on."
    if isinstance(weight, str) and (share := quoted_share(weight)) is not None:
        hint = f"Write {share:g}, without quotes."
    return Refusal(found="nothing" if weight is None else repr(weight), allowed=number_words(minimum=None), hint=hint)


def template_fields(template: str) -> tuple[str, ...]:
    """Return the column names a prompt template uses, in order.

    Raises:
        ValueError: braces do not pair up, a field is empty, or it asks for more than a column (``{a.b}``, ``{a!r}``,
            ``{a:>5}``).
    """
    names = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name or spec or conversion or not name.replace("_", "").replace("-", "").replace(" ", "").isalnum():
            raise ValueError(f"the field {{{name}}} is not a plain column name")
        names.append(name)
    return tuple(names)
