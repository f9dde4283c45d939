"""The planners can be had from the package, and cost nothing until then."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cohort.scheduling
from cohort.scheduling.packing.planner import plan_packs
from cohort.scheduling.placement.task_planner import plan_placement


def test_the_planners_are_public() -> None:
    assert cohort.scheduling.plan_packs is plan_packs
    assert cohort.scheduling.plan_placement is plan_placement
    assert dir(cohort.scheduling) == ["plan_packs", "plan_placement"]
    with pytest.raises(AttributeError, match="public names: plan_packs, plan_placement"):
        cohort.scheduling.plan_everything  # noqa: B018


def test_admission_needs_no_solver() -> None:
    code = "import sys, cohort.scheduling.admission; assert not {'ortools', 'scipy', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
