"""Whole steps of a model of few layers: losses and weights of a trial alone and in packs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from benchmarks.llama_shapes import decoder_config, gsm8k_rows, random_decoder
from benchmarks.numerics.places import Place, Row, changed
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["step_rows"]


def _spec(trial_id: int, rank: int, *, dropout: float, batch_size: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=rank, lora_alpha=2.0 * rank, lora_dropout=dropout),
        learning_rate=3e-3,
        batch_size=batch_size,
        num_steps=1000,
    )


def step_rows(place: Place, *, settings: dict[str, Any]) -> Iterator[Row]:
    """Steps of a model of few layers: a trial's losses and weights alone and in random packs."""
    shape, steps = ("tiny", 3) if place.tiny else ("1b", 6)
    config = decoder_config(shape, num_layers=2)
    decoder = random_decoder(config, device=place.device, dtype=place.dtype)
    rows = gsm8k_rows(64, vocab_size=config.vocab_size)
    trial = _spec(0, 16, dropout=0.0, batch_size=3)

    def run(specs: Sequence[TrialSpec], *, budget: int, graphs: int) -> tuple[list[float], Tensor]:
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=rows,
            settings=ExecutorSettings(
                num_slots=max(8, len(specs)),
                num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
                token_budget=budget,
                evaluation_token_budget=budget,
                graph_tokens=graphs,
                **settings,
            ),
            device=place.device,
            compute_dtype=place.dtype,
        )
        for spec in specs:
            executor.load(spec)
        losses = []
        for _ in range(steps):
            losses += [done.loss for done in executor.step() if done.trial_id == 0]
        return losses, executor.weights(0)

    before = [_spec(7, 64, dropout=0.0, batch_size=4), _spec(8, 8, dropout=0.0, batch_size=1)]
    expected = run([trial], budget=8192, graphs=0)
    cases: list[tuple[str, list[TrialSpec], int, int]] = [
        ("alone, again", [trial], 8192, 0),
        ("alone, split", [trial], 300, 0),
        ("alone, recorded", [trial], 8192, 4096),
        ("small ranks beside", [_spec(5, 8, dropout=0.0, batch_size=2), trial], 8192, 0),
        ("ranks 8 to 64 beside", [*before, trial], 8192, 0),
        ("dropout beside", [*before, trial, _spec(9, 16, dropout=0.1, batch_size=2)], 8192, 0),
        ("a rank of 200 beside", [_spec(6, 200, dropout=0.0, batch_size=2), trial], 8192, 0),
        ("ranks 8 to 64 beside, split", [*before, trial], 700, 0),
        ("ranks 8 to 64 beside, recorded", [*before, trial], 8192, 4096),
    ]
    for what, specs, budget, graphs in cases:
        losses, weights = run(specs, budget=budget, graphs=graphs)
        pairs = enumerate(zip(losses, expected[0], strict=True), 1)
        first = next((step for step, (one, other) in pairs if one != other), None)
        row: Row = {"operation": f"{steps} steps", "form": str(settings) if settings else "fast", "beside": what}
        yield row | {"first_other_loss": first, "changed": changed(weights, expected[1])}
