"""Recorded passes that drop inputs of adapters: the bits of launched ones, in exact numerics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from tests.training.cuda_graphs.test_recorded_training import ROWS, spec_of
from tests.training.small_models import save_llama


@pytest.mark.gpu
@pytest.mark.parametrize("dropouts", [(0.1, 0.1, 0.1), (0.2, 0.0, 0.5)])
def test_recorded_passes_with_dropout_have_the_bits_of_launched_ones_in_exact_numerics(
    tmp_path: Path, dropouts: tuple[float, ...]
) -> None:
    save_llama(tmp_path, num_layers=3)
    found = []
    for graph_tokens in (0, 4096):
        decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=ExecutorSettings(
                num_slots=4,
                num_rank_rows=128,
                token_budget=10_000,
                evaluation_token_budget=10_000,
                graph_tokens=graph_tokens,
                numerics=Numerics.EXACT,
            ),
            device="cuda",
            compute_dtype=torch.bfloat16,
        )
        for trial_id, (r, batch_size) in enumerate([(16, 4), (8, 2), (33, 2)]):
            executor.load(
                spec_of(trial_id, r=r, batch_size=batch_size, objective=OBJECTIVES["sft"], dropout=dropouts[trial_id])
            )
        losses = [event.loss for _ in range(12) for event in executor.step()]
        evaluated = executor.evaluate([0, 2], rows=ROWS, row_ids=range(9))
        found.append((losses, [executor.weights(trial_id) for trial_id in range(3)], evaluated[0].loss))
        if graph_tokens:
            assert executor.captured is not None
            assert executor.captured.sizes.get(GraphKind.DROPPED_SUMS)
            assert executor.captured.num_replays >= 6
    one_by_one, recorded = found
    assert recorded[0] == one_by_one[0]
    assert recorded[2] == one_by_one[2]
    assert all(torch.equal(*pair) for pair in zip(recorded[1], one_by_one[1], strict=True))
