"""A recorder of passes: ranks that record together, and what is no shortage of memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.kernels.exact_product import AgreedShapes
from cohort.training.cuda_graphs import pass_recorder
from cohort.training.cuda_graphs.pass_recorder import PassRecorder
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from tests.training.cuda_graphs.fake_device import FakeGraph, fake_device


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


def test_what_the_linears_know_of_the_blas_settles_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, AgreedShapes | None, bool]] = []

    def is_settled(num_rows: int, *, agreed: AgreedShapes | None, trains: bool) -> bool:
        asked.append((num_rows, agreed, trains))
        return False

    monkeypatch.setattr(pass_recorder, "is_settled", is_settled)
    agreed, of_head = AgreedShapes(), AgreedShapes()
    products = (SimpleNamespace(), SimpleNamespace(agreed_shapes=agreed))
    layer = SimpleNamespace(linears=[SimpleNamespace(frozen=product) for product in products])
    decoder: Any = SimpleNamespace(layers=[layer], products=(*products, SimpleNamespace(agreed_shapes=of_head)))
    bank: Any = SimpleNamespace(is_exact=True)
    recorder = PassRecorder(decoder, bank)
    shape = PassShape(num_rows=640, num_sequences=8, length=512, num_trained=304)
    assert not recorder.is_settled(shape, kind=GraphKind.SUMS)
    assert not recorder.is_settled(shape, kind=GraphKind.MEASURES)
    assert asked == [(640, agreed, True), (640, agreed, False)]
    # on a base whose linears never ask, the head says nothing of them
    layer.linears = layer.linears[:1]
    assert not recorder.is_settled(shape, kind=GraphKind.SUMS)
    assert asked.pop() == (640, None, True)
    # other numerics ask nothing
    bank.is_exact = False
    assert recorder.is_settled(shape, kind=GraphKind.SUMS)
    assert len(asked) == 2


@pytest.mark.parametrize("is_exact", [True, False])
def test_the_first_training_recording_has_the_blas_asked_about_the_others(
    monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    begun: list[tuple[AgreedShapes, int]] = []
    ended: list[str] = []

    def begin(agreed: AgreedShapes, *, room: Callable[[], int]) -> SimpleNamespace:
        def start() -> None:
            begun.append((agreed, room()))
            # the recording is made, whether a thread can be started or not
            raise RuntimeError("can't start new thread")

        return SimpleNamespace(start=start, is_alive=lambda: True, end=lambda: ended.append("questions"))

    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 0.1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 << 30)

    monkeypatch.setattr(pass_recorder, "AskingAhead", begin)
    passes: Any = fake_device(monkeypatch, [FakeGraph() for _ in range(4)])
    recorder, agreed = passes.recorder, AgreedShapes()
    recorder._bank.is_exact = is_exact
    recorder._decoder.layers[0].linears[0].frozen = SimpleNamespace(agreed_shapes=agreed)
    slots = recorder._bank.slot_table()
    for rows, kind in ((512, GraphKind.MEASURES), (640, GraphKind.SUMS), (768, GraphKind.SUMS)):
        shape = PassShape(num_rows=rows, num_sequences=8, length=512, num_trained=304)
        assert recorder.record(shape, kind=kind, slots=slots, is_short=True) is not None
        if kind is GraphKind.MEASURES:
            assert not begun, "its products are not all known"
    memory: Any = recorder._memory
    monkeypatch.setattr(memory, "free", lambda: ended.append("memory"))
    recorder.give_up_memory()
    assert ended == [*["questions"] * is_exact, "memory"]
    # of the 8 GiB that are free the task may have 6, a tenth of 80 without the 2 that it has, and one is left
    assert begun == ([(agreed, 5 << 30)] if is_exact else [])
