"""What the drawer of mutants leaves out: what says nothing when it is changed."""

from __future__ import annotations

import ast

from tools.drawn_mutants import unevaluated

CODE = """\
@given(most=1 + 1)
def sum_of(a: int | None, b: int = 2 + 2) -> int | None:
    found: int | str = 3
    assert found < 4, "a bug"
    return found + b
"""


def test_annotations_decorators_and_assertions_are_left_out() -> None:
    spans = unevaluated(ast.parse(CODE))
    tokens = {"most": (1, 14), "a": (2, 14), "b": (2, 35), "result": (2, 50), "found": (3, 15), "assert": (4, 18)}
    left = {name for name, place in tokens.items() if not any(first <= place < last for first, last in spans)}
    assert left == {"b"}
    assert not any(first <= (5, 17) < last for first, last in spans)
