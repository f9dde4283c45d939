"""Whole steps of a model of few layers: losses and weights of a trial alone and in packs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from benchmarks.llama_shapes import decoder_config, gsm8k_rows, random_decoder
from benchmarks.numerics.places import Place, Row, changed
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, triton_interprets, use_backend
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
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


def step_rows(place: Place, *, numerics: Sequence[Numerics]) -> Iterator[Row]:
    """Steps of a model of few layers: a trial's losses, evaluation and weights alone and in random packs."""
    shape, steps = ("tiny", 3) if place.tiny else ("1b", 6)
    config = decoder_config(shape, num_layers=2)
    rows = gsm8k_rows(64, vocab_size=config.vocab_size)
    forced = use_backend(Backend.TRITON) if triton_interprets() else nullcontext()
    for kind in numerics:
        decoder = random_decoder(config, device=place.device, dtype=place.dtype)
        if place.device == "cuda":
            _compile(decoder, kind)
        with forced:
            yield from _packs_of_one(place, decoder, rows, kind=kind, steps=steps)


def _compile(decoder: Decoder, kind: Numerics) -> None:
    """Compile what the packs launch, all at once."""
    # a rank of 200 beside dropout is compiled as it comes
    kinds = [AdapterSpec(r=r, lora_alpha=1.0, lora_dropout=dropout) for dropout in (0.0, 0.1) for r in (16, 64)]
    kinds.append(AdapterSpec(r=200, lora_alpha=1.0))
    begun = time.perf_counter()
    with KernelCompiler() as compiler:
        collect_launches(
            decoder, compiler=compiler, target_linears=decoder.linears, adapters=kinds, usual=200,
            pass_tokens=(600,), numerics=kind,
        )  # fmt: skip
        compiler.wait()
    print(f"compiled in {time.perf_counter() - begun:.1f} s", flush=True)


def _packs_of_one(place: Place, decoder: Decoder, rows: TokenisedRows, *, kind: Numerics, steps: int) -> Iterator[Row]:
    trial = _spec(0, 16, dropout=0.0, batch_size=3)
    dropped = _spec(0, 16, dropout=0.1, batch_size=3)

    def run(specs: Sequence[TrialSpec], *, budget: int, graphs: int) -> _Found:
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
                numerics=kind,
            ),
            device=place.device,
            compute_dtype=place.dtype,
        )
        for spec in specs:
            executor.load(spec)
        losses, times = [], []
        for _ in range(steps):
            begun = time.perf_counter()
            losses += [done.loss for done in executor.step() if done.trial_id == 0]
            times.append(time.perf_counter() - begun)
        everyone = [spec.trial_id for spec in specs]
        losses.append(executor.evaluate(everyone, rows=rows, row_ids=range(9))[0].loss)
        replays = 0 if executor.captured is None else executor.captured.num_replays
        return _Found(losses, executor.weights(0), replays, 1e3 * min(times))

    before = [_spec(7, 64, dropout=0.0, batch_size=4), _spec(8, 8, dropout=0.0, batch_size=1)]
    noisy = _spec(9, 16, dropout=0.1, batch_size=2)
    for own in (trial, dropped):
        expected = run([own], budget=8192, graphs=0)
        cases: list[tuple[str, list[TrialSpec], int, int]] = [
            ("alone, again", [own], 8192, 0),
            ("alone, split", [own], 300, 0),
            ("small ranks beside", [_spec(5, 8, dropout=0.0, batch_size=2), own], 8192, 0),
            ("ranks 8 to 64 beside", [*before, own], 8192, 0),
            ("dropout beside", [*before, own, noisy], 8192, 0),
            ("a rank of 200 beside", [_spec(6, 200, dropout=0.0, batch_size=2), own], 8192, 0),
            ("ranks 8 to 64 beside, split", [*before, own], 700, 0),
        ]
        if own is trial and not place.tiny:
            cases += [
                ("alone, recorded", [own], 8192, 4096),
                ("ranks 8 to 64 beside, recorded", [*before, own], 8192, 4096),
            ]
        if own is dropped:
            # those that have kernels of their own
            cases = [case for case in cases if case[0] in ("alone, split", "ranks 8 to 64 beside", "dropout beside")]
        for what, specs, budget, graphs in cases:
            row: Row = {"operation": f"{steps} steps", "form": str(kind), "dropout": own.adapter.lora_dropout}
            row |= {"beside": what}
            try:
                found = run(specs, budget=budget, graphs=graphs)
            except Exception as error:  # the other packs are worth having
                yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
                continue
            pairs = enumerate(zip(found.losses, expected.losses, strict=True), 1)
            first = next((step for step, (one, other) in pairs if one != other), None)
            row |= {"first_other_loss": first, "changed": changed(found.weights, expected.weights)}
            yield row | {"replays": found.replays, "least_ms": round(found.least_ms, 2), "last_loss": found.losses[-2]}


@dataclass(frozen=True)
class _Found:
    losses: list[float]
    weights: Tensor
    replays: int
    least_ms: float
