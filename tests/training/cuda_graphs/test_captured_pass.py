"""A staged replay names a filling of its graph's tensors."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from cohort.training.cuda_graphs.captured_pass import CapturedPass
from cohort.training.cuda_graphs.captured_passes import CapturedPasses


def test_a_staged_pass_is_void_once_its_graph_is_filled_for_another_and_no_circle_keeps_the_graph() -> None:
    nothing: Any = None
    passes = CapturedPasses(nothing, nothing, most_rows=64)
    graph = object.__new__(CapturedPass)
    replays: list[str] = []
    recording: Any = SimpleNamespace(replay=lambda: replays.append("replay"))
    graph._graph, graph._losses_T, graph.filling = recording, torch.zeros(2), 0
    graph._tensors = SimpleNamespace(fill=lambda *_, **__: None)  # type: ignore[assignment]
    graph._decoder = SimpleNamespace(ring=None)  # type: ignore[assignment]
    stream: Any = SimpleNamespace(segments=None)
    first = graph.stage(stream, slots=nothing, divisors=None, fresh_slots=())
    second = graph.stage(stream, slots=nothing, divisors=None, fresh_slots=())
    assert passes.replay(first) is None
    assert not replays
    assert passes.replay(second) is graph._losses_T
    assert replays == ["replay"]
    alive = weakref.ref(graph)
    gc.disable()
    try:
        del graph, first, second
        assert alive() is None
    finally:
        gc.enable()
