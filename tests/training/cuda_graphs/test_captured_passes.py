"""Which sizes are recorded, and when: behind which steps, in which order, and in whose memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cohort.training.cuda_graphs import pass_recorder
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import HIDING_SHARE, GraphKind, launching_rows
from tests.training.cuda_graphs.fake_device import FakeGraph, fake_device


def test_the_largest_training_pass_is_recorded_first_so_that_others_fit_into_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the first does not fit
    graphs = [FakeGraph(fails=True), FakeGraph(), FakeGraph(), FakeGraph(), FakeGraph()]
    passes = fake_device(monkeypatch, graphs, most_rows=4100)
    shapes = [
        PassShape(num_rows=n, num_sequences=6, length=200, num_trained=n // 2) for n in (500, 500, 900, 900, 2000)
    ]
    slots = cast(Any, None)
    for need in shapes:
        passes._graph(need, kind=GraphKind.SUMS, slots=slots, widest=16, upcoming=lambda: shapes * 4)
    assert [graph.shape.num_rows for graph in graphs[:2]] == [4096, 2048]
    assert passes.sizes[GraphKind.SUMS][-1] == 2048
    # of the trained rows as many as the pass that was asked for has
    assert graphs[1].shape.num_trained == pytest.approx(1024, rel=0.15)
    # what is smaller finds its kernels compiled and its memory there: few layers, and the device does not wait
    assert [graph.has_few_layers for graph in graphs[:3]] == [False, False, True]
    assert [graph.is_short for graph in graphs[1:3]] == [True, False]


def test_a_first_pass_near_the_largest_is_replayed_in_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [FakeGraph(), FakeGraph()]
    passes = fake_device(monkeypatch, graphs)
    shape = PassShape(num_rows=3700, num_sequences=6, length=200, num_trained=1900)
    used: Any = None
    for _ in range(2):
        used = passes._graph(shape, kind=GraphKind.SUMS, slots=cast(Any, None), widest=16, upcoming=lambda: [shape] * 9)
    assert used is graphs[0]
    assert passes.sizes[GraphKind.SUMS] == [4096]


def test_a_recording_that_finds_too_little_memory_is_made_again_with_all_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = [FakeGraph(), FakeGraph(fails=True), FakeGraph()]
    passes = fake_device(monkeypatch, graphs)
    shape = PassShape(num_rows=500, num_sequences=6, length=200, num_trained=250)
    for _ in range(2):
        passes._graph(shape, kind=GraphKind.SUMS, slots=cast(Any, None), widest=16, upcoming=lambda: [shape] * 24)
    assert [graph.has_few_layers for graph in graphs] == [False, True, False]
    assert graphs[2].is_short
    # and passes of that size are recorded on
    assert graphs[2].shape == graphs[1].shape
    assert passes.sizes[GraphKind.SUMS] == sorted(graph.shape.num_rows for graph in (graphs[0], graphs[2]))


def test_a_size_is_recorded_while_the_device_is_busy_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = fake_device(monkeypatch, [FakeGraph() for _ in range(8)])
    shapes = [PassShape(num_rows=n, num_sequences=6, length=200, num_trained=n // 2) for n in (3000, 1500, 800)]

    def pass_of(need: PassShape) -> None:
        slots = cast(Any, None)
        passes._graph(need, kind=GraphKind.SUMS, slots=slots, widest=16, upcoming=lambda: shapes * 2)

    def ahead(num_rows: float) -> list[int]:
        passes.record_ahead(lambda: shapes * 12, num_rows=num_rows)
        return passes.sizes.get(GraphKind.SUMS, [])

    assert ahead(1e9) == [], "no pass has come"
    for _ in range(2):
        pass_of(shapes[0])
    held = ahead(1e9)
    assert held == passes.sizes[GraphKind.SUMS], "the device has waited for a recording in this step"
    assert ahead(100.0) == held, "it would wait for this one"
    more = ahead(1e9)
    assert len(more) == len(held) + 1
    # what its steps lose to larger sizes is worth it, and no more
    while (found := ahead(1e9)) != more:
        more = found
    assert len(more) <= 5
    # the next pass finds its size
    pass_of(shapes[2])
    assert passes.sizes[GraphKind.SUMS] == more
    assert min(more) < 1200
    # ranks record together or not at all
    passes.recorder.agree = lambda recorded: recorded
    assert ahead(1e9) == more


def sharing(monkeypatch: pytest.MonkeyPatch, graphs: list[FakeGraph], *, is_exact: bool = False) -> CapturedPasses:
    """Passes of two trials of which the largest and a usual one are recorded."""
    passes = fake_device(monkeypatch, graphs)
    bank: Any = passes._bank
    bank.is_exact = is_exact
    bank.slot_table = lambda: SimpleNamespace(ranks=(16, 0, 8), dropouts=(0.0,) * 3)
    for _ in range(2):
        passes._graph(NEED, kind=GraphKind.SUMS, slots=cast(Any, None), widest=16, upcoming=lambda: [NEED] * 9)
    # the device has waited for these
    passes.record_ahead(lambda: [NEED] * 9, num_rows=1e9)
    return passes


def behind_steps(passes: CapturedPasses, *, times: int, num_rows: float = 1e9) -> list[int]:
    """Return the sizes that there are behind ``times`` more steps."""
    for _ in range(times):
        passes.record_ahead(lambda: [NEED] * 9, num_rows=num_rows)
    return passes.sizes[GraphKind.SUMS]


NEED = PassShape(num_rows=3000, num_sequences=6, length=200, num_trained=1500)


def test_sizes_for_fewer_trials_are_recorded_once_nothing_else_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(40)])
    held, launching = passes.sizes[GraphKind.SUMS], launching_rows(passes._decoder.config)
    assert behind_steps(passes, times=20, num_rows=0.4 * launching) == held, "the device would wait for it"
    found = behind_steps(passes, times=20, num_rows=HIDING_SHARE * launching)
    assert set(found) > set(held)
    assert max(found) == max(held)
    assert min(found) < 500
    assert behind_steps(passes, times=20, num_rows=launching) == found, "the ladder is whole"


def test_one_trial_alone_has_no_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(40)])
    bank: Any = passes._bank
    held = passes.sizes[GraphKind.SUMS]
    bank.slot_table = lambda: SimpleNamespace(ranks=(0, 16), dropouts=(0.0,) * 2)
    assert behind_steps(passes, times=9) == held


def test_so_many_are_recorded_and_for_the_widest_rank_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(40)])
    held = {key: len(graphs) for key, graphs in passes._graphs.items()}
    bank: Any = passes._bank
    bank.slot_table = lambda: SimpleNamespace(ranks=(4, 0, 8), dropouts=(0.0,) * 3)
    passes._spares_left = 3
    behind_steps(passes, times=9)
    found = {key: len(graphs) for key, graphs in passes._graphs.items()}
    assert found == held | {(GraphKind.SUMS, 8): 3}


def test_an_exact_size_that_nobody_asked_for_is_warmed_up_first_where_there_is_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(60)], is_exact=True)
    held, launching = passes.sizes[GraphKind.SUMS], launching_rows(passes._decoder.config)
    warmed_up: list[int] = []
    warm_up = passes.recorder.warm_up

    def noted(shape: PassShape, *, kind: GraphKind, slots: Any) -> bool:
        warmed_up.append(shape.num_rows)
        return warm_up(shape, kind=kind, slots=slots)

    monkeypatch.setattr(passes.recorder, "warm_up", noted)
    assert behind_steps(passes, times=5, num_rows=0.9 * launching) == held
    assert warmed_up == [], "it waits for the step, and the device runs dry"
    assert behind_steps(passes, times=1) == held
    assert len(warmed_up) == 1, "its kernels"
    assert behind_steps(passes, times=1, num_rows=0.4 * launching) == held
    assert behind_steps(passes, times=1, num_rows=HIDING_SHARE * launching) == sorted([*held, *warmed_up]), "and itself"


def test_an_exact_size_of_which_everything_is_known_is_recorded_behind_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled: list[int] = []
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(60)], is_exact=True)
    monkeypatch.setattr(pass_recorder, "is_settled", lambda num_rows, **_: num_rows in settled)
    held = passes.sizes[GraphKind.SUMS]
    assert passes._policy is not None
    recorded = [*passes._recorded(GraphKind.SUMS, widest=16)]
    missing = passes._policy.spare(recorded=recorded, kind=GraphKind.SUMS, most_rows=passes._most_rows)
    assert missing is not None
    settled.append(missing.num_rows)
    short = HIDING_SHARE * launching_rows(passes._decoder.config)
    assert behind_steps(passes, times=1, num_rows=short) == sorted([*held, missing.num_rows])
    # the next one is not known
    assert len(behind_steps(passes, times=3, num_rows=short)) == len(held) + 1
    assert len(behind_steps(passes, times=1)) == len(held) + 1
    assert len(behind_steps(passes, times=1)) == len(held) + 2


def test_what_is_warmed_up_is_recorded_though_another_size_is_missing_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(60)], is_exact=True)
    held = passes.sizes[GraphKind.SUMS]
    # passes have more trained rows with each step
    missing = iter([replace(NEED, num_rows=2048, num_trained=1000 + 100 * step) for step in range(9)])
    monkeypatch.setattr(passes._policy, "spare", lambda **_: next(missing))
    assert behind_steps(passes, times=1) == held
    assert behind_steps(passes, times=1) == sorted([*held, 2048])
    recorded = [graph.shape.num_trained for graphs in passes._graphs.values() for graph in graphs]
    assert 1000 in recorded


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_size_that_nobody_asked_for_and_that_finds_no_memory_ends_the_ladder_alone(
    monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    graphs = [FakeGraph(), FakeGraph(), FakeGraph(fails=True), *(FakeGraph() for _ in range(9))]
    passes = sharing(monkeypatch, graphs, is_exact=is_exact)
    held, most_rows = passes.sizes[GraphKind.SUMS], passes._most_rows
    assert behind_steps(passes, times=9) == held
    assert not hasattr(graphs[3], "shape"), "nothing is tried again"
    # the larger ones serve their passes
    assert passes._most_rows == most_rows


def test_an_error_of_a_size_that_nobody_asked_for_does_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = sharing(monkeypatch, [FakeGraph() for _ in range(9)])
    tried: list[int] = []

    def record(shape: PassShape, **_: object) -> None:
        tried.append(shape.num_rows)
        raise RuntimeError("something else")

    monkeypatch.setattr(passes.recorder, "record", record)
    with pytest.raises(RuntimeError, match="something else"):
        behind_steps(passes, times=1)
    behind_steps(passes, times=5)
    assert len(tried) == 1


def test_what_is_recorded_ahead_serves_the_trials_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = fake_device(monkeypatch, [FakeGraph() for _ in range(4)])
    shapes = [PassShape(num_rows=n, num_sequences=6, length=200, num_trained=n // 2) for n in (3000, 1500)]
    for _ in range(2):
        passes._graph(shapes[0], kind=GraphKind.SUMS, slots=cast(Any, None), widest=64, upcoming=lambda: shapes * 2)

    def ahead() -> dict[tuple[GraphKind, int], int]:
        for _ in range(2):
            passes.record_ahead(lambda: shapes * 12, num_rows=1e9)
        return {key: len(graphs) for key, graphs in passes._graphs.items()}

    held = {key: len(graphs) for key, graphs in passes._graphs.items()}
    bank: Any = passes._bank
    # a graph keeps the norms of the step that it is recorded in
    bank.has_magnitudes = True
    assert ahead() == held
    # the trial of rank 64 has left, and may come back
    bank.has_magnitudes = False
    found = ahead()
    assert {key: found[key] for key in held} == held
    assert found[GraphKind.SUMS, 16] >= 1


@pytest.mark.parametrize("is_known", [False, True])
def test_an_exact_size_is_warmed_up_behind_one_step_and_recorded_behind_the_next_unless_all_is_known(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    graphs = [FakeGraph() for _ in range(8)]
    passes = fake_device(monkeypatch, graphs)
    passes._bank.is_exact = True
    monkeypatch.setattr(pass_recorder, "is_settled", lambda *_, **__: is_known)
    need = PassShape(num_rows=3000, num_sequences=6, length=200, num_trained=1500)
    small = PassShape(num_rows=800, num_sequences=6, length=200, num_trained=400)
    for _ in range(2):
        slots = cast(Any, None)
        passes._graph(need, kind=GraphKind.SUMS, slots=slots, widest=16, upcoming=lambda: [need])

    def ahead() -> int:
        passes.record_ahead(lambda: [small] * 40, num_rows=1e9)
        return len(passes.sizes[GraphKind.SUMS])

    held = ahead()
    made = next(place for place, graph in enumerate(graphs) if not hasattr(graph, "has_few_layers"))
    assert [ahead(), ahead(), ahead()] == [held + is_known, held + 1, held + 1]
    # its kernels once, and then itself
    assert graphs[made].has_few_layers
    assert hasattr(graphs[made], "is_short") == is_known
    if is_known:
        return
    assert graphs[made + 1].shape == graphs[made].shape
    assert not graphs[made + 1].is_short


def test_an_exact_size_without_memory_to_be_warmed_up_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [FakeGraph(), FakeGraph(), FakeGraph(fails=True), FakeGraph()]
    passes = fake_device(monkeypatch, graphs)
    passes._bank.is_exact = True
    need, small = (PassShape(num_rows=n, num_sequences=6, length=200, num_trained=n // 2) for n in (3000, 800))
    for _ in range(2):
        slots = cast(Any, None)
        passes._graph(need, kind=GraphKind.SUMS, slots=slots, widest=16, upcoming=lambda: [need])
    for _ in range(4):
        passes.record_ahead(lambda: [small] * 40, num_rows=1e9)
    assert graphs[2].has_few_layers
    assert not hasattr(graphs[3], "has_few_layers")
