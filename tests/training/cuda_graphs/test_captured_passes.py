"""Recorded passes: the same training as passes launched one by one, on shapes that few graphs serve."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.models.streaming.host_source import host_streaming
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs import pass_recorder
from cohort.training.cuda_graphs.captured_pass import CapturedPass, StagedReplay
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.recorded_shapes import GraphKind, PassShape
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec
from tests.training.small_models import compared_rows, save_llama

ROWS = compared_rows(40, seed=3)


def test_what_is_given_up_is_freed_though_a_staged_pass_names_it() -> None:
    calls: list[str] = []
    nothing: Any = None
    passes = CapturedPasses(nothing, nothing, most_rows=64)
    graph = object.__new__(CapturedPass)
    recording: Any = SimpleNamespace(reset=lambda: calls.append("reset"))
    graph._graph, graph._losses_T = recording, torch.zeros(1)
    graph.filling, graph._backward = 1, recording
    graph._decoder = SimpleNamespace(ring=None)  # type: ignore[assignment]
    staged = StagedReplay(graph=graph, filling=1)
    passes._graphs[GraphKind.SUMS, 8] = [graph]
    assert passes.give_up()
    assert calls == ["reset", "reset"]
    assert passes.replay(staged) is None
    assert not hasattr(graph, "_losses_T")
    assert not passes.give_up()


class Graph:
    """A graph that is only named; launching it may fail."""

    kind = GraphKind.SUMS
    shape: PassShape

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def of(self, shape: PassShape) -> Graph:
        self.shape = shape
        return self

    def warm_up(self, memory: object, *, with_few_layers: bool) -> None:
        assert memory is not None
        self.has_few_layers = with_few_layers
        if self._fails:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def record(self, _: object, *, is_short: bool) -> None:
        self.is_short = is_short


def fake_device(monkeypatch: pytest.MonkeyPatch, graphs: Iterable[Any], *, most_rows: int = 4096) -> CapturedPasses:
    """Passes whose graphs are ``graphs``, one after the other, on a device where each makes others wait 0.25 s."""
    made = iter(graphs)
    monkeypatch.setattr(pass_recorder, "CapturedPass", lambda shape, **_: next(made).of(shape))
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 30, 80 << 30))
    config = SimpleNamespace(hidden_size=2048, query_width=2048, kv_width=512, mlp_width=8192, pads_attention=False)
    layer = SimpleNamespace(linears=[SimpleNamespace(frozen=None, parts=[SimpleNamespace(name="q")])], first_experts=())
    decoder = SimpleNamespace(ring=None, config=config, layers=[layer])
    bank = SimpleNamespace(
        is_exact=False,
        weights_RD=torch.zeros(1),
        layout=SimpleNamespace(columns={"q": None}),
        slot_table=lambda: SimpleNamespace(ranks=(16,), dropouts=(0.0,)),
        has_magnitudes=False,
    )
    return CapturedPasses(cast(Any, decoder), cast(Any, bank), most_rows=most_rows)


def test_the_largest_training_pass_is_recorded_first_so_that_others_fit_into_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the first does not fit
    graphs = [Graph(fails=True), Graph(), Graph(), Graph(), Graph()]
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
    graphs = [Graph(), Graph()]
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
    graphs = [Graph(), Graph(fails=True), Graph()]
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
    passes = fake_device(monkeypatch, [Graph() for _ in range(8)])
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


def test_what_is_recorded_ahead_serves_the_trials_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = fake_device(monkeypatch, [Graph() for _ in range(4)])
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


def test_an_exact_size_is_warmed_up_behind_one_step_and_recorded_behind_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = [Graph() for _ in range(8)]
    passes = fake_device(monkeypatch, graphs)
    passes._bank.is_exact = True
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
    assert [ahead(), ahead(), ahead()] == [held, held + 1, held + 1]
    # its kernels once, and then itself
    assert graphs[made].has_few_layers
    assert not hasattr(graphs[made], "is_short")
    assert graphs[made + 1].shape == graphs[made].shape
    assert not graphs[made + 1].is_short


def test_an_exact_size_without_memory_to_be_warmed_up_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [Graph(), Graph(), Graph(fails=True), Graph()]
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


def spec_of(trial_id: int, *, r: int, batch_size: int, objective: Objective, dropout: float = 0.0) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=30,
        objective=objective,
    )


PLAIN = (0.0, 0.0, 0.0, 0.0)


@pytest.mark.gpu
# plain sums of token losses are one graph; terms that decide on the tokens' weights stand between two
@pytest.mark.parametrize(
    ("objective", "streamed", "token_budget", "dropouts"),
    [
        ("sft", (), 10_000, PLAIN),
        # steps of several passes, which one graph serves in turn
        ("sft", (), 100, PLAIN),
        ("sft", (0, 1, 3, 4, 5), 10_000, PLAIN),
        ("dpo", (), 10_000, PLAIN),
        ("orpo", (), 10_000, PLAIN),
        ("kto", (), 10_000, PLAIN),
        ("sft next to dpo", (), 10_000, PLAIN),
        # keys of rows are filled before each replay; with a small budget some passes drop nothing
        ("sft", (), 10_000, (0.1, 0.3, 0.5, 0.2)),
        ("sft", (), 100, (0.3, 0.0, 0.0, 0.2)),
        ("dpo", (), 10_000, (0.3, 0.0, 0.1, 0.0)),
    ],
)
def test_recorded_passes_train_alike(
    tmp_path: Path, objective: str, streamed: tuple[int, ...], token_budget: int, dropouts: tuple[float, ...]
) -> None:
    """Trials come and go, ranks differ, one is poisoned; losses and weights agree with launches one by one.

    So they do where layers pass through a ring: its copies are recorded with the pass, of plain sums. Evaluations that
    are launched behind the step agree with those that are launched when they are asked for.
    """
    save_llama(tmp_path, num_layers=6)
    runs, fetches = {}, {}
    for graph_tokens in (0, 4096):
        streaming = host_streaming(streamed, torch.device("cuda"))
        decoder = load_decoder(tmp_path, dtype="float32", device="cuda", streaming=streaming)
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=ExecutorSettings(
                num_slots=6,
                num_rank_rows=256,
                token_budget=token_budget,
                evaluation_token_budget=10_000,
                graph_tokens=graph_tokens,
            ),
            device="cuda",
        )
        for trial_id, (r, batch_size) in enumerate([(16, 4), (8, 2), (33, 2), (4, 3)]):
            own = OBJECTIVES[objective.split()[-1 if trial_id % 2 else 0]]
            executor.load(spec_of(trial_id, r=r, batch_size=batch_size, objective=own, dropout=dropouts[trial_id]))
        losses = []
        for step in range(12):
            if step == 5:
                executor.drop(1)
            if step == 8:
                rows = executor.bank.rank_rows(executor.slot_of(3))
                executor.bank.weights_RD[rows] = float("nan")
                executor.bank.refresh(executor.slot_of(3))
            if graph_tokens:
                executor.expect_evaluation([[0, 2]])
            losses += [event.loss for event in executor.step() if event.trial_id != 3]
            behind = executor.evaluate([0, 2], rows=ROWS, row_ids=range(9))
            losses += [behind[trial_id].loss for trial_id in (0, 2)]
        evaluated = [executor.evaluate([0, 2], rows=ROWS, row_ids=range(9)) for _ in range(4)][-1]
        runs[graph_tokens] = (losses, executor.weights(0), executor.weights(2), evaluated)
        if graph_tokens:
            assert executor.captured is not None
            assert executor.captured.num_replays >= 8
        fetches[graph_tokens] = 0 if decoder.ring is None else decoder.ring.num_fetches
    # passes of filler before each recording come on top
    assert fetches[4096] >= fetches[0] >= len(streamed)
    one_by_one, recorded = runs[0], runs[4096]
    # a term of preferences is a small difference of sums of some hundred nats
    rel, of_norm = (1e-5, 1e-4) if objective == "sft" else (1e-4, 1e-3)
    assert recorded[0] == pytest.approx(one_by_one[0], rel=rel, abs=rel)
    for found, expected in zip(recorded[1:3], one_by_one[1:3], strict=True):
        assert torch.linalg.vector_norm(found - expected) <= of_norm * torch.linalg.vector_norm(expected)
    for trial_id in (0, 2):
        assert recorded[3][trial_id].loss == pytest.approx(one_by_one[3][trial_id].loss, rel=rel, abs=rel)
