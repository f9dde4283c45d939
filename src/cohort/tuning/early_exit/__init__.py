"""Early exit: one rule per file of ``kinds`` behind one interface (see ``rule.py``)."""

from cohort.tuning.early_exit.lookup import reason_of, reasons
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
