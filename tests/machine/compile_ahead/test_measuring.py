"""While kernels are compiled, memory is measured by passes that launch none of them, where sizes follow from shapes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.machine.compile_ahead import task_kernels as kernels
from cohort.machine.compile_ahead.kernel_cache import mark
from cohort.training.objectives import OBJECTIVES
from tests.machine.compile_ahead.fake_warm_up import Workers, warm_up


@pytest.mark.parametrize(
    ("given", "objective", "ring", "calls"),
    [
        ({}, "sft", None, ["collect stand-in", "collecting", "measured", "collected", "go on", "end"]),
        ({}, "dpo", None, ["collect stand-in", "collecting", "measured", "collected", "go on", "end"]),
        # what a quantised weight launches is known with the model
        (
            {"quantization": "int8"},
            "sft",
            None,
            ["collect model", "collecting", "measured", "collected", "go on", "end"],
        ),
        # launched: sizes follow from what kernels compute, layers are copied, a function reads losses
        ({"mixture": "experts"}, "sft", None, ["collect stand-in", "go on", "measured", "end"]),
        ({}, "sft", "ring", ["collect stand-in", "go on", "measured", "end"]),
        ({}, "function", None, ["collect stand-in", "go on", "measured", "end"]),
    ],
)
def test_memory_is_measured_by_passes_that_launch_nothing_where_their_sizes_follow_from_shapes(
    on_gpu: Path, given: dict[str, Any], objective: str, ring: str | None, calls: list[str]
) -> None:
    workers = Workers()
    model: Any = SimpleNamespace(ring=ring)
    with warm_up("cuda", say=str, workers=workers, **given) as found:
        found.begin()
        with found.measuring(model, OBJECTIVES[objective]):
            workers.calls.append("measured")
    assert [call.replace(str(model), "model") for call in workers.calls] == calls


def test_passes_that_could_not_be_collected_are_launched(on_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(kernels, "collect_launches", refuse)
    workers = Workers()
    model: Any = SimpleNamespace(ring=None)
    with warm_up("cuda", say=str, workers=workers) as found:
        found.begin()
        with found.measuring(model, OBJECTIVES["sft"]):
            workers.calls.append("measured")
    assert workers.calls == ["go on", "measured", "end"]


def test_passes_are_launched_where_nothing_is_compiled(on_gpu: Path) -> None:
    mark(on_gpu / "cohort-0.compiled")
    workers = Workers()
    model: Any = SimpleNamespace(ring=None)
    with warm_up("cuda", say=str, workers=workers) as found, found.measuring(model, OBJECTIVES["sft"]):
        workers.calls.append("measured")
    assert workers.calls == ["measured"]
