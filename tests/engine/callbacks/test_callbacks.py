"""What callbacks may be; whole runs with callbacks are tested end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.engine.callbacks.callback_reports import StepReport
from cohort.engine.callbacks.callbacks import Callbacks


async def _later(report: StepReport) -> None: ...


def _some(report: StepReport) -> Iterator[int]:
    yield report.step


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (_later, "async or a generator"),
        (_some, "async or a generator"),
        (lambda: None, "does not take one argument"),
        (lambda one, two: None, "does not take one argument"),
    ],
)
def test_what_could_never_work_is_refused_before_training(callback: Callable[..., Any], told: str) -> None:
    with pytest.raises(InputError, match=f"on_step: found .*{told}; allowed: a function of one report"):
        Callbacks(on_step=callback)


def test_built_in_functions_and_methods_are_callbacks() -> None:
    def counting(report: StepReport, count: int = 1) -> None: ...

    assert Callbacks(on_step=print)
    assert Callbacks(on_step=list[object]().append)
    assert Callbacks(on_step=counting)
