"""Rows in which nothing stands between prompt and answer get a line break; prompts that lead to it stay as they are."""

from __future__ import annotations

import pytest

from cohort.core.place import Place
from cohort.data.files.joints import separating_template
from cohort.data.files.rows import RawRow

Pair = tuple[object, object]


def rows(*pairs: Pair, names: tuple[str, str] = ("prompt", "completion")) -> list[RawRow]:
    return [
        RawRow(where=Place(line=number), values=dict(zip(names, pair, strict=True)))
        for number, pair in enumerate(pairs, start=1)
    ]


@pytest.mark.parametrize(
    ("pairs", "template"),
    [
        ([("What is 3 plus 3?", "6")], "{prompt}\n"),
        ([("Once upon a time", "there was")], "{prompt}\n"),
        # the author ended the prompt, or began the answer
        ([("1+1=", "2")], None),
        ([("Q: 1 + 1\nA:", "2")], None),
        ([("What is 3 plus 3?\n", "6")], None),
        ([("What is 3 plus 3?", " 6")], None),
        # most rows decide
        ([("a?", "b"), ("c?", "d"), ("e? ", "f")], "{prompt}\n"),
        ([("a?", "b"), ("c? ", "d")], None),
        # conversations, gaps and mistakes are nothing to judge by
        ([([{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}])], None),
        ([("", "a"), (None, "b"), ("c", 3)], None),
        ([], None),
    ],
)
def test_what_most_rows_have_between_prompt_and_answer_decides(pairs: list[Pair], template: str | None) -> None:
    assert separating_template(rows(*pairs), columns={}) == template


def test_the_template_names_the_column_of_the_file() -> None:
    glued = rows(("a?", "b"), names=("question", "answer"))
    assert separating_template(glued, columns={"prompt": "question", "completion": "answer"}) == "{question}\n"
    # a template cannot name this one
    odd = rows(("a?", "b"), names=("the.question", "answer"))
    assert separating_template(odd, columns={"prompt": "the.question", "completion": "answer"}) == "{prompt}\n"
