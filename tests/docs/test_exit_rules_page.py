"""The page of exit rules says what the rules say."""

from __future__ import annotations

from cohort.tuning.early_exit import reasons
from tools.exit_rules_page import PAGE, exit_rules_page


def test_the_page_is_that_of_the_rules() -> None:
    # a plain truth value: a long diff of both pages would hide what to do
    is_same = PAGE.read_text(encoding="utf-8") == exit_rules_page()
    assert is_same, "docs/exit-rules.md is out of date; write it again with: python tools/exit_rules_page.py"


def test_every_reason_has_a_sentence() -> None:
    assert [str(reason) for reason in reasons() if not reason.sentence.endswith(".")] == []
