"""Memory for the largest recording is taken without it, where few layers tell how much that is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cohort.training.cuda_graphs.captured_pass import RecordingMemory
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from tests.training.cuda_graphs.fake_device import HEAD_BYTES, FakeGraph, fake_device

NEED = PassShape(num_rows=880, num_sequences=6, length=200, num_trained=440)
NUM_LAYERS, LAYER_BYTES = 32, 50
TOLD = HEAD_BYTES + NUM_LAYERS * LAYER_BYTES


class Reserved:
    """What is asked of the device: bytes, and whether other memory is freed for it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, room: float = 1e18, error: str = "CUDA out of memory"
    ) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.num_freed = 0

        def reserve(_: RecordingMemory, num_bytes: int, *, is_short: bool) -> None:
            self.asked.append((num_bytes, is_short))
            if num_bytes > room:
                raise RuntimeError(error)

        def free(_: RecordingMemory) -> None:
            self.num_freed += 1

        monkeypatch.setattr(RecordingMemory, "reserve", reserve)
        monkeypatch.setattr(RecordingMemory, "free", free)


def pass_of(passes: CapturedPasses, need: PassShape = NEED, *, count: int = 1) -> Any:
    """Run passes of one size; the first of all is launched."""
    for _ in range(count):
        use = passes._graph(need, kind=GraphKind.SUMS, slots=cast(Any, None), widest=16, upcoming=lambda: [need] * 24)
    return use


def has_little_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (num_bytes, 80 << 30))


def test_the_first_size_is_recorded_in_memory_that_the_largest_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    largest, own = FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, [largest, own], num_layers=NUM_LAYERS)
    used = pass_of(passes, count=2)
    assert used is own
    assert passes.sizes == {GraphKind.SUMS: [own.shape.num_rows]}
    assert largest.shape.num_rows == 4096
    assert not hasattr(largest, "is_short"), "it is not recorded"
    # the device is not waited for, neither here nor there
    assert reserved.asked == [(TOLD, False)]
    assert own.has_few_layers
    assert not own.is_short
    # of the launches for the largest and of the recording
    assert passes.capture_seconds == 0.5


def test_sizes_up_to_what_was_reserved_need_nothing_that_is_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    Reserved(monkeypatch)
    passes = fake_device(monkeypatch, [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()], num_layers=NUM_LAYERS)
    pass_of(passes, count=2)
    assert not passes.recorder.is_short(replace(NEED, num_rows=4096))
    assert passes.recorder.is_short(replace(NEED, num_rows=4097))
    has_little_free(monkeypatch, 1 << 20)
    assert passes.recorder.is_short(NEED)


def test_a_largest_size_near_the_one_needed_is_recorded_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    largest, reserved = FakeGraph(layer_bytes=LAYER_BYTES), Reserved(monkeypatch)
    passes = fake_device(monkeypatch, [largest], num_layers=NUM_LAYERS)
    assert pass_of(passes, PassShape(num_rows=3700, num_sequences=6, length=200, num_trained=1900), count=2) is largest
    assert passes.sizes[GraphKind.SUMS] == [4096]
    assert not reserved.asked


@pytest.mark.parametrize("reason", ["ranks agree", "a ring", "few layers", "layers differ", "whole blocks"])
def test_the_largest_is_recorded_where_nothing_tells_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    graphs = [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph(layer_bytes=LAYER_BYTES)]
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, graphs, num_layers=4 if reason == "few layers" else NUM_LAYERS)
    decoder: Any = passes._decoder
    if reason == "ranks agree":
        passes.recorder.agree = lambda recorded: recorded
    elif reason == "a ring":
        decoder.ring = SimpleNamespace(source=SimpleNamespace(is_recordable=True))
    elif reason == "layers differ":
        without = SimpleNamespace(linears=[SimpleNamespace(frozen=None, parts=[SimpleNamespace(name="k")])])
        decoder.layers[7] = SimpleNamespace(linears=without.linears, first_experts=())
    elif reason == "whole blocks":
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"max_split_size": 1 << 27})
    pass_of(passes, count=2)
    assert passes.sizes[GraphKind.SUMS] == [graphs[1].shape.num_rows, 4096]
    assert graphs[0].is_short
    assert not reserved.asked


def test_no_more_is_taken_than_was_planned_for_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()], num_layers=NUM_LAYERS)
    passes.recorder._most_bytes = TOLD // 2
    assert pass_of(passes, count=2) is not None
    assert reserved.asked == [(TOLD // 2, False)]


def test_what_others_keep_is_freed_where_the_device_has_little_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()], num_layers=NUM_LAYERS)
    has_little_free(monkeypatch, TOLD)
    pass_of(passes, count=2)
    assert reserved.asked == [(TOLD, True)]


def test_half_of_the_rows_are_reserved_where_all_find_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # what the second takes fits
    graphs = [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph(layer_bytes=LAYER_BYTES // 2), FakeGraph()]
    reserved = Reserved(monkeypatch, room=HEAD_BYTES + NUM_LAYERS * LAYER_BYTES // 2)
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    assert pass_of(passes, count=2) is graphs[2]
    assert [graph.shape.num_rows for graph in graphs[:2]] == [4096, 2048]
    # at first with what is free, then with what others keep
    assert [is_short for _, is_short in reserved.asked] == [False, True, False]
    assert passes.recorder.is_short(replace(NEED, num_rows=2049))
    assert not passes.recorder.is_short(replace(NEED, num_rows=2048))
    # and no larger pass is recorded
    assert passes._most_rows == 2048


def test_a_pool_in_which_only_a_recording_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = list[RecordingMemory]()

    def reserve(memory: RecordingMemory, num_bytes: int, *, is_short: bool) -> None:
        pools.append(memory)
        if len(pools) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(RecordingMemory, "reserve", reserve)
    graphs = [*(FakeGraph(layer_bytes=LAYER_BYTES) for _ in range(2)), FakeGraph(fails=True), FakeGraph(fails=True)]
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    assert pass_of(passes, count=2) is None
    assert len(set(map(id, pools))) == 3
    # what was reserved keeps the last one, though no recording has found room in it
    assert passes.recorder._memory is pools[2]


def test_half_of_the_rows_are_reserved_where_few_layers_find_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [FakeGraph(fails=True), FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()]
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    assert pass_of(passes, count=2) is graphs[2]
    assert graphs[1].shape.num_rows == 2048
    assert reserved.asked == [(TOLD, False)]


def test_without_memory_for_any_larger_size_the_one_needed_is_recorded_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = [*(FakeGraph(layer_bytes=LAYER_BYTES) for _ in range(2)), FakeGraph(fails=True), FakeGraph()]
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    Reserved(monkeypatch, room=0, error="Error during capture")
    # 1,024 rows are near those that are needed, and so recorded in their place
    assert pass_of(passes, count=2) is graphs[3]
    assert [graph.shape.num_rows for graph in graphs[:3]] == [4096, 2048, 1024]
    assert graphs[3].is_short


def test_a_recording_without_memory_in_what_was_reserved_is_tried_with_all_and_then_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph(fails=True), FakeGraph(fails=True)]
    reserved = Reserved(monkeypatch)
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    assert pass_of(passes, count=2) is None
    assert [graph.has_few_layers for graph in graphs[1:]] == [True, False]
    assert passes._most_rows < graphs[1].shape.num_rows
    assert pass_of(passes, count=3) is None
    assert len(reserved.asked) == 1


def test_an_error_that_is_no_shortage_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = fake_device(monkeypatch, [FakeGraph(layer_bytes=LAYER_BYTES)], num_layers=NUM_LAYERS)
    Reserved(monkeypatch, room=0, error="an illegal memory access")
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        pass_of(passes, count=2)


def test_what_was_reserved_is_given_back_with_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = Reserved(monkeypatch)
    graphs: list[Any] = [FakeGraph(layer_bytes=LAYER_BYTES), FakeGraph()]
    passes = fake_device(monkeypatch, graphs, num_layers=NUM_LAYERS)
    pass_of(passes, count=2)
    graphs[1].free = lambda: None
    assert passes.give_up()
    assert reserved.num_freed == 1
    assert passes.recorder.is_short(NEED)
    assert not passes.give_up()
    assert reserved.num_freed == 1
