"""A recorder of passes: ranks that record together, and what is no shortage of memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.training.cuda_graphs.pass_recorder import PassRecorder


def test_a_recording_counts_only_where_all_ranks_made_it() -> None:
    nothing: Any = None
    recorder = PassRecorder(nothing, nothing)
    graph: Any = SimpleNamespace(record=lambda *_, **__: None)

    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def another_did_not(recorded: bool) -> bool:
        asked.append(recorded)
        return False

    assert recorder._is_recorded(graph, is_short=True)
    asked: list[bool] = []
    recorder.agree = another_did_not
    assert not recorder._is_recorded(graph, is_short=True)
    graph.record = short
    assert not recorder._is_recorded(graph, is_short=True)
    assert asked == [True, False]
    graph.record = lambda *_, **__: nothing.missing
    with pytest.raises(AttributeError):
        recorder._is_recorded(graph, is_short=True)
