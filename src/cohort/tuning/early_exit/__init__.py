"""Early exit: one rule per file behind one interface (see ``rule.py``)."""

from cohort.tuning.early_exit.rule import Observation, Rule, Verdict
from cohort.tuning.early_exit.rules import build_rules
from cohort.tuning.early_exit.settings import EarlyExitSettings, RuleName

__all__ = ["EarlyExitSettings", "Observation", "Rule", "RuleName", "Verdict", "build_rules"]
