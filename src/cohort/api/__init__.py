"""Cohort from Python: tasks are run, resumed and looked at."""

from cohort.api.engine import Engine
from cohort.api.runs import load, load_run, resume, run, tune

__all__ = ["Engine", "load", "load_run", "resume", "run", "tune"]
