"""Early exit: one rule per file behind one interface (see ``rule.py``), found by its ``EXIT_RULE``."""

from cohort.tuning.early_exit.by_name import reason_of, reasons
from cohort.tuning.early_exit.rule import CommonSettings, ExitRule, Observation, Rule, RuleSettings, Verdict
from cohort.tuning.early_exit.settings import EarlyExitSettings, build_rules

__all__ = [
    "CommonSettings",
    "EarlyExitSettings",
    "ExitRule",
    "Observation",
    "Rule",
    "RuleSettings",
    "Verdict",
    "build_rules",
    "reason_of",
    "reasons",
]
