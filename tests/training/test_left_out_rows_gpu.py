"""On a GPU: passes whose last layer computes trained rows alone, against passes that compute all, and one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.few_layers import all_rows
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from tests.training.cuda_graphs.test_recorded_training import ROWS, spec_of
from tests.training.left_out_passes import DROPOUTS, PACK, bank_of, entries_of, launched
from tests.training.small_models import save_llama

pytestmark = pytest.mark.gpu

# so that other tiles are chosen for the rows of the last layer
LONG_PACK = (*PACK[:3], *((length, 30, 1) for length in range(180, 190)), *((90 + n, 80, 3) for n in range(9)))


def opened(folder: Path, *, dtype: str, hidden_size: int = 48, num_layers: int = 2) -> Decoder:
    save_llama(folder, num_layers=num_layers, hidden_size=hidden_size)
    return load_decoder(folder, dtype=dtype, device="cuda")


@pytest.mark.parametrize("dropouts", [(0.0,) * 4, DROPOUTS], ids=["plain", "dropped"])
@pytest.mark.parametrize("samples", [PACK, LONG_PACK], ids=["short", "long"])
@pytest.mark.parametrize("is_exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_and_gradients_are_those_of_all_rows(
    tmp_path: Path,
    dtype: str,
    is_exact: bool,
    samples: tuple[tuple[int, int, int], ...],
    dropouts: tuple[float, ...],
) -> None:
    # wide enough for tiles of a tensor core's product in bfloat16
    decoder = opened(tmp_path, dtype=dtype, hidden_size=384 if dtype == "bfloat16" else 48)
    decoder.use_exact_products(exact=is_exact)
    bank, entries = bank_of(decoder, is_exact=is_exact, dropouts=dropouts), entries_of(samples, drops=any(dropouts))
    present = sorted({entry.slot for entry in entries})
    with all_rows(decoder):
        whole = launched(decoder, bank, entries, fresh_slots=present)
    whole_RD = bank.grads_RD.clone()
    # what is written over is not read, in slots that train nothing either
    bank.grads_RD.fill_(float("nan"))
    least = launched(decoder, bank, entries, fresh_slots=present)
    num_used = sum(len(entry.sample.tokens) for entry in entries)
    if is_exact:
        assert torch.equal(least[:num_used], whole[:num_used])
    # what a BLAS rounds otherwise among other rows
    of_norm = 2e-3 if is_exact or dtype == "float32" else 5e-2
    torch.testing.assert_close(least[:num_used], whole[:num_used], rtol=of_norm, atol=2 * of_norm)
    for slot in present:
        rows = bank.slot_table().rank_rows(slot)
        for columns in bank.layout.columns.values():
            for place in (columns.a, columns.b):
                found, expected = bank.grads_RD[rows, place], whole_RD[rows, place]
                assert torch.linalg.vector_norm(found - expected) <= of_norm * torch.linalg.vector_norm(expected)
    # again, with what all of them were before
    again_RD = bank.grads_RD.clone()
    assert torch.equal(launched(decoder, bank, entries, fresh_slots=present), least)
    used = [bank.slot_table().rank_rows(slot) for slot in present]
    assert all(torch.equal(bank.grads_RD[rows], again_RD[rows]) for rows in used)


@pytest.mark.parametrize("dropouts", [(0.0, 0.0, 0.0), (0.2, 0.0, 0.5)], ids=["plain", "dropped"])
@pytest.mark.parametrize(("objective", "token_budget"), [("sft", 10_000), ("sft", 150), ("dpo", 10_000), ("dpo", 150)])
def test_recorded_passes_and_trials_alone_have_the_bits_of_launched_packs(
    tmp_path: Path, objective: str, token_budget: int, dropouts: tuple[float, ...]
) -> None:
    """In exact numerics: three trials launched, recorded, and the first alone, launched and recorded."""
    found = {}
    for graph_tokens, num_trials in ((0, 3), (4096, 3), (0, 1), (4096, 1)):
        decoder = opened(tmp_path, dtype="bfloat16", hidden_size=384, num_layers=3)
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=ExecutorSettings(
                num_slots=num_trials,
                num_rank_rows=128,
                token_budget=token_budget,
                evaluation_token_budget=10_000,
                graph_tokens=graph_tokens,
                numerics=Numerics.EXACT,
            ),
            device="cuda",
            compute_dtype=torch.bfloat16,
        )
        for trial_id, (r, batch_size) in enumerate([(16, 4), (8, 2), (33, 2)][:num_trials]):
            own, dropout = OBJECTIVES[objective], dropouts[trial_id]
            executor.load(spec_of(trial_id, r=r, batch_size=batch_size, objective=own, dropout=dropout))
        losses = [[event.loss for event in executor.step()] for _ in range(12)]
        evaluated = [executor.evaluate([0], rows=ROWS, row_ids=range(9))[0].loss for _ in range(4)]
        weights = [executor.weights(trial_id) for trial_id in range(num_trials)]
        found[graph_tokens, num_trials] = losses, evaluated, weights
        if graph_tokens:
            assert executor.captured is not None
            assert executor.captured.num_replays >= 6
    launches, *others = found.values()
    for losses, evaluated, weights in others:
        assert evaluated == launches[1]
        for of_step, expected in zip(losses, launches[0], strict=True):
            assert of_step == expected[: len(of_step)]
        assert all(torch.equal(*pair) for pair in zip(weights, launches[2], strict=False))
