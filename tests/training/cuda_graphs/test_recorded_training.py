"""Recorded passes: the same training as passes launched one by one, on shapes that few graphs serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.models.streaming.host_source import host_streaming
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.captured_pass import CapturedPass, StagedReplay
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
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
