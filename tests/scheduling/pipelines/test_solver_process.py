"""The process that solves windows: one question at a time, its answer later, and its end."""

from __future__ import annotations

import pytest

from cohort.scheduling.pipelines.solver_process import LIMITS, SolverProcess
from cohort.scheduling.pipelines.window_packing import solved_schedule
from tests.scheduling.pipelines.test_window_packing import question


def test_a_window_is_solved_elsewhere_as_it_would_be_here() -> None:
    process = SolverProcess()
    try:
        assert process.answer() is None
        asked = question(keeps_order=True, num_adapters=2)
        process.ask(asked)
        assert process.answer(60.0) == (asked, solved_schedule(asked, limits=LIMITS))
        assert process.answer() is None
        # a process that dies says so
        process.ask(asked)
        process._process.kill()
        with pytest.raises(EOFError):
            process.answer(60.0)
    finally:
        process.close()


def test_a_process_that_died_before_its_question_leaves_nothing_behind() -> None:
    process = SolverProcess()
    process._process.kill()
    process._process.wait()
    with pytest.raises(OSError, match="Broken pipe"):
        process.ask(question(keeps_order=True, num_adapters=2))
    process.close()
    assert process._process.stdout is not None
    assert process._process.stdout.closed
