"""Constraints between parameters: what the language knows, and how it refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.tuning.constraints import ConstraintError, parse_constraint

NAMES = ("r", "lora_alpha", "batch_size", "lr_scheduler_type", "use_rslora")
VALUES: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32.0,
    "batch_size": 4,
    "lr_scheduler_type": "cosine",
    "use_rslora": False,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("lora_alpha >= r", True),
        ("lora_alpha == 3 * r", False),
        ("batch_size * r <= 64", True),
        ("8 <= r < 16", False),
        ("r in [8, 16]", True),
        ("r not in (8, 16)", False),
        ("lr_scheduler_type == 'cosine' and not use_rslora", True),
        ("use_rslora == true or r // 3 % 2 == 1", True),
        ("-r + 20 > +3", True),
        ("max(r, batch_size) / min(r, batch_size) > 4", False),
    ],
)
def test_what_holds(text: str, holds: bool) -> None:
    constraint = parse_constraint(text, names=NAMES)
    assert constraint.holds(VALUES) is holds
    assert constraint.names <= set(NAMES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank >= 4", r"'rank' in 'rank >= 4'; allowed: r, lora_alpha"),
        ("lora_alpa >= r", "Did you mean lora_alpha?"),
        ("r >= ", "Write it as in Python"),
        ("r * 2", "compares nothing"),
        ("1 < 2", "about no parameter"),
        ("r ** 9999 > 1", r"'r \*\* 9999'"),
        ("__import__('os').system('true') == 0", "__import__"),
        ("r.real > 1", "'r.real'"),
        ("[x for x in (1, 2)] == r", "for x in"),
        ("(lambda: r)() > 1", "lambda"),
        ("r in lora_alpha", "Write a list in brackets after in"),
        ("min(r) > 1", r"'min\(r\)'"),
        ("r is 3", "'r is 3'"),
        ("r > " + "1 + " * 500 + "1", "characters"),
        ("f'{r}' == 'a'", "in "),
        (7, "in quotes"),
    ],
)
def test_what_is_refused(text: object, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_constraint(text, names=NAMES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("r / (batch_size - 4) > 0", "division by zero"),
        ("r % (batch_size - 4) == 0", "modulo by zero"),
        (f"r * 0.5 * {'9' * 400} > 1", "too large"),
    ],
)
def test_what_cannot_be_worked_out_is_told_with_the_values(text: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=rf"cannot be worked out for (batch_size = 4, )?r = 16 \(.*{reason}.*\)"):
        parse_constraint(text, names=NAMES).holds(VALUES)


@pytest.mark.parametrize("text", ["lr_scheduler_type < r", "lr_scheduler_type * 1000000000 == r", "r > 'a'"])
def test_texts_are_no_numbers(text: str) -> None:
    with pytest.raises(ConstraintError, match=r"makes no sense for (lr_scheduler_type|r = 16)"):
        parse_constraint(text, names=NAMES).holds(VALUES)
