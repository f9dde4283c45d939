"""Where a prompt and its answer meet: a template for rows in which nothing would stand between the two.

A prompt and its completion are joined as they are, as TRL does: the author of a file of prompts has ended them as they
should end. Columns such as ``question`` and ``answer`` were never meant to be joined, and `4 + 4?8` is no text that a
base model has seen: its tokens may merge across the border, and a server would have to send the very same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.data.files.formats import DataFormat, detect_format, renamed
from cohort.data.files.rows import RawRow

__all__ = ["separating_template"]

# an author who ends a prompt so leads to the answer: `1+1=`, `Answer:`, `->`, `###`
_LEADING_MARKS = frozenset("=:>#|]}/\\~*-")


def separating_template(rows: Sequence[RawRow], *, columns: Mapping[str, str]) -> str | None:
    """Return the prompt with a line break where most rows have nothing between prompt and completion; else None.

    Args:
        columns: Our column names and the file's, where they differ.
    """
    texts = [pair for row in rows if (pair := _pair(row, columns=columns)) is not None]
    glued = sum(1 for prompt, completion in texts if _is_glued(prompt, completion))
    if 2 * glued <= len(texts):
        return None
    name = columns.get("prompt", "prompt")
    # a column with other characters cannot be named in a template, but our name for it can
    is_plain = name.replace("_", "").replace("-", "").replace(" ", "").isalnum()
    return f"{{{name if is_plain else 'prompt'}}}\n"


def _pair(row: RawRow, *, columns: Mapping[str, str]) -> tuple[str, str] | None:
    values = renamed(row.values, columns=columns)
    if detect_format(values) is not DataFormat.PROMPT_COMPLETION:
        return None
    prompt, completion = values["prompt"], values["completion"]
    if not isinstance(prompt, str) or not isinstance(completion, str) or not prompt or not completion:
        return None
    return prompt, completion


def _is_glued(prompt: str, completion: str) -> bool:
    return not prompt[-1].isspace() and not completion[0].isspace() and prompt[-1] not in _LEADING_MARKS
