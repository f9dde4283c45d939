"""The exit rules there are, with their settings and reasons: Cohort's own, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cohort.core.registry import Registry
from cohort.core.setting_fields import SettingField, setting_fields
from cohort.tuning.decisions import COMPLETED, FAILED, IMPROVED, NON_FINITE, Reason
from cohort.tuning.early_exit.collapse import COLLAPSE_REASONS
from cohort.tuning.early_exit.rule import CommonSettings, ExitRule
from cohort.tuning.interventions import BY_USER

__all__ = ["DEFAULT_RULE", "EXIT_RULES", "built_in_keys", "reason_of", "reasons"]

DEFAULT_RULE = "patterns"


def _conflict(entry: ExitRule) -> str | None:
    """Return why another package's rule cannot stand with ours: keys and reasons are one flat space each."""
    own_keys, own_reasons = built_in_keys(), _own_reasons()
    for name, field in setting_fields(entry.settings).items():
        if name == "rule" or own_keys.get(name, field) != field:
            return f"its setting {name!r} means something else in Cohort"
    for reason in entry.reasons:
        if own_reasons.get(reason, reason) is not reason:
            return f"its reason {str(reason)!r} means something else in Cohort"
    return None


EXIT_RULES = Registry(
    kind=ExitRule,
    noun="exit rule",
    package="cohort.tuning.early_exit.kinds",
    constant="EXIT_RULE",
    group="cohort.exit_rules",
    default=DEFAULT_RULE,
    conflict=_conflict,
)


def built_in_keys() -> dict[str, SettingField]:
    """Return all settings of Cohort's own rules by their key in the task file."""
    classes = (CommonSettings, *(entry.settings for entry in EXIT_RULES.built_in()))
    return {name: field for settings in classes for name, field in setting_fields(settings).items()}


def reasons() -> tuple[Reason, ...]:
    """Return every reason of Cohort's own rules and of those of installed packages.

    Raises:
        InputError: a package's rule cannot be used.
    """
    found = (*_own_reasons().values(), *(reason for entry in EXIT_RULES.plugins() for reason in entry.reasons))
    return tuple(dict.fromkeys(found))


def reason_of(text: str) -> Reason:
    """Return the reason that a record names; a plain one if no rule declares it any more."""
    return _own_reasons().get(text) or next((reason for reason in _of_plugins() if reason == text), Reason(text))


@cache
def _own_reasons() -> dict[str, Reason]:
    ours = (reason for entry in EXIT_RULES.built_in() for reason in entry.reasons)
    always = (IMPROVED, COMPLETED, FAILED, NON_FINITE, *COLLAPSE_REASONS, *BY_USER.values())
    return {str(reason): reason for reason in (*always, *ours)}


def _of_plugins() -> Iterator[Reason]:
    try:
        for entry in EXIT_RULES.plugins():
            yield from entry.reasons
    # A finished run is still shown where the rule that ended its trials is gone or broken: only the look is lost.
    except Exception:
        return
