"""Writes docs/exit-rules.md from the rules themselves: ``python tools/exit_rules_page.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cohort.core.setting_fields import SettingField, setting_fields
from cohort.tuning.decisions import NON_FINITE
from cohort.tuning.early_exit.lookup import EXIT_RULES, built_in_keys
from cohort.tuning.samplers import SAMPLERS

__all__ = ["PAGE", "exit_rules_page"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "exit-rules.md"


def exit_rules_page() -> str:
    """Return the page."""
    rules = EXIT_RULES.built_in()
    reasons = dict.fromkeys((NON_FINITE, *(reason for rule in rules for reason in rule.reasons)))
    return "\n".join(
        [
            "# Exit rules and samplers",
            "",
            "`python tools/exit_rules_page.py` writes this page from the rules and samplers themselves.",
            "",
            "## `early_exit.rule`",
            "",
            *_table(("rule", "which trials end early"), [(f"`{rule.name}`", rule.summary) for rule in rules]),
            "",
            "## Keys of `early_exit`",
            "",
            *_table(("key", "read by", "default", "allowed", "meaning"), [*_keys(built_in_keys())]),
            "",
            "## Reasons",
            "",
            "The report, `results.csv` and `run.db` name them.",
            "",
            *_table(("reason", "what happened"), [(f"`{reason}`", reason.sentence) for reason in reasons]),
            "",
            "## `search.sampler`",
            "",
            *_table(
                ("sampler", "what it proposes"), [(f"`{kind.name}`", kind.summary) for kind in SAMPLERS.built_in()]
            ),
            "",
        ]
    )


def _keys(fields: dict[str, SettingField]) -> Iterator[tuple[str, ...]]:
    for name, field in fields.items():
        rules = [f"`{rule.name}`" for rule in EXIT_RULES.built_in() if name in setting_fields(rule.settings)]
        readers = ", ".join(rules) or "every rule"
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        yield f"`{name}`", readers, f"`{default}`", field.allowed.replace("|", "or"), field.description


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    PAGE.write_text(exit_rules_page(), encoding="utf-8")
