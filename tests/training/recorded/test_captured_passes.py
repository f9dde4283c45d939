"""Recorded passes: the same training as passes launched one by one, on shapes that few graphs serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.models.streaming.host_source import host_streaming
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.recorded import captured_passes, recorded_shapes
from cohort.training.recorded.captured_pass import CapturedPass, StagedReplay
from cohort.training.recorded.captured_passes import CapturedPasses
from cohort.training.recorded.recorded_shapes import GraphKind, PassShape
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


def test_a_recording_counts_only_where_all_ranks_made_it() -> None:
    nothing: Any = None
    passes = CapturedPasses(nothing, nothing, most_rows=64)
    graph: Any = SimpleNamespace(record=lambda _: None)

    def short(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def another_did_not(recorded: bool) -> bool:
        asked.append(recorded)
        return False

    assert passes._is_recorded(graph)
    asked: list[bool] = []
    passes.agree = another_did_not
    assert not passes._is_recorded(graph)
    graph.record = short
    assert not passes._is_recorded(graph)
    assert asked == [True, False]
    graph.record = lambda _: nothing.missing
    with pytest.raises(AttributeError):
        passes._is_recorded(graph)


class Graph:
    """Notes how it is recorded; the first ways to do it may fail."""

    kind, num_columns, is_recorded = GraphKind.SUMS, 16, False

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def warm_up(self) -> None:
        self.calls.append("launched")

    def record(self, _: object) -> None:
        self.calls.append("recorded")
        self.is_recorded = True

    def record_at_once(self, _: object, *, stream: object) -> None:
        del stream
        self.calls.append("at once")
        if self._error is not None:
            raise self._error
        self.is_recorded = True


def test_only_the_first_pass_of_a_kind_is_launched_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = [
        Graph(),
        Graph(),
        Graph(torch.OutOfMemoryError("CUDA out of memory")),
        Graph(),
        Graph(RuntimeError("operation not permitted when stream is capturing")),
        Graph(),
    ]
    made = iter(graphs)
    monkeypatch.setattr(captured_passes, "CapturedPass", lambda *_, **__: next(made))
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    decoder, bank = SimpleNamespace(ring=None), SimpleNamespace(is_exact=False)
    passes = CapturedPasses(cast(Any, decoder), cast(Any, bank), most_rows=4096)
    shape = PassShape(num_rows=128, num_sequences=16, length=512, num_trained=64)
    for graph in graphs:
        assert passes._record(shape, kind=GraphKind.SUMS, slots=cast(Any, None)) is graph
    assert [graph.calls for graph in graphs] == [
        ["launched", "recorded"],
        ["at once"],
        # no memory: once the allocator has freed what it keeps there may be enough
        ["at once", "launched", "recorded"],
        ["at once"],
        # anything else: never again
        ["at once", "launched", "recorded"],
        ["launched", "recorded"],
    ]
    assert passes.capture_seconds == passes.capture_seconds == 1.5


@pytest.mark.gpu
# plain sums of token losses are one graph; terms that decide on the tokens' weights stand between two
@pytest.mark.parametrize(
    ("objective", "streamed"),
    [("sft", ()), ("sft", (0, 1, 3, 4, 5)), ("dpo", ()), ("orpo", ()), ("kto", ()), ("sft beside dpo", ())],
)
def test_recorded_passes_train_alike(tmp_path: Path, objective: str, streamed: tuple[int, ...]) -> None:
    """Trials come and go, ranks differ, one is poisoned; losses and weights agree with launches one by one.

    So they do where layers pass through a ring: its copies are recorded with the pass, of plain sums.
    """
    save_llama(tmp_path, num_layers=6 if streamed else 2)
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
                token_budget=10_000,
                evaluation_token_budget=10_000,
                graph_tokens=graph_tokens,
            ),
            device="cuda",
        )
        for trial_id, (r, batch_size) in enumerate([(16, 4), (8, 2), (33, 2), (4, 3)]):
            executor.load(
                TrialSpec(
                    trial_id=trial_id,
                    seed=trial_id,
                    adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
                    learning_rate=1e-3,
                    batch_size=batch_size,
                    num_steps=30,
                    objective=OBJECTIVES[objective.split()[-1 if trial_id % 2 else 0]],
                )
            )
        losses = []
        for step in range(12):
            if step == 5:
                executor.drop(1)
            if step == 8:
                rows = executor.bank.rank_rows(executor.slot_of(3))
                executor.bank.weights_RD[rows] = float("nan")
                executor.bank.refresh(executor.slot_of(3))
            losses += [event.loss for event in executor.step() if event.trial_id != 3]
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


@pytest.mark.gpu
@pytest.mark.parametrize("numerics", list(Numerics))
def test_a_pass_that_was_not_launched_before_gives_the_bits_of_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numerics: Numerics
) -> None:
    save_llama(tmp_path, hidden_size=384)
    # every new size is worth a recording
    monkeypatch.setattr(recorded_shapes, "RECORDING_SECONDS", 0.0)
    found = []
    for at_once in (True, False):
        decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
        settings = ExecutorSettings(
            num_slots=2,
            num_rank_rows=64,
            token_budget=4096,
            evaluation_token_budget=4096,
            graph_tokens=4096,
            numerics=numerics,
        )
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=settings,
            device="cuda",
            compute_dtype=decoder.dtype,
        )
        assert executor.captured is not None
        executor.captured.records_at_once = at_once
        losses = []
        for trial_id, batch_size in enumerate((3, 40)):
            spec = TrialSpec(
                trial_id=trial_id,
                seed=trial_id,
                adapter=AdapterSpec(r=16, lora_alpha=32.0),
                learning_rate=1e-3,
                batch_size=batch_size,
                num_steps=30,
            )
            executor.load(spec)
            losses += [[event.loss for event in executor.step()] for _ in range(6)]
            evaluated = [executor.evaluate([0], rows=ROWS, row_ids=range(n)) for n in (5, 5, 9, 9, 30, 30)]
            losses += [[loss[0].loss for loss in evaluated]]
        assert executor.captured.records_at_once is at_once
        assert sum(len(rows) for rows in executor.captured.sizes.values()) >= 3
        found.append((losses, executor.weights(0), executor.weights(1)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1:], found[1][1:], strict=True))
