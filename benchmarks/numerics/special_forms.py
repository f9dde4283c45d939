"""What few tasks have: 8-bit weights, DoRA, the place of the LoRA term, recomputed activations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.llama_shapes import decoder_config, gsm8k_rows, random_decoder, rows_of_lengths
from benchmarks.numerics.lora_terms import Tenant, tenant, term_pack
from benchmarks.numerics.places import Place, Row, changed
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, triton_interprets, use_backend
from cohort.kernels.fp8_product import fp8_forward, fp8_grad_input, quantise_rows
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.kernels.packed_linear.triton import grouped_forward
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["special_rows"]

# rows whose bits are compared: the first of every stream
BLOCK = 32


def special_rows(place: Place) -> Iterator[Row]:
    """Codes and their products, the place of the LoRA term, DoRA and recomputed passes, in both numerics."""
    forced = use_backend(Backend.TRITON) if triton_interprets() else nullcontext()
    with forced:
        yield from _code_rows(place)
        yield from _term_places(place)
        for numerics in Numerics:
            yield from _step_rows(place, numerics)


def _code_rows(place: Place) -> Iterator[Row]:
    shapes = (
        {"tiny": (48, 96)} if place.tiny else {"1b qkv": (2048, 3072), "1b down": (8192, 2048), "8b o": (4096, 4096)}
    )
    counts = (32, 64, 128) if place.tiny else (32, 128, 256, 1024, 4096, 8192)
    for name, (num_in, num_out) in shapes.items():
        weight = quantise_rows(place.draw(num_out, num_in, seed=1, std=num_in**-0.5))
        x, dy = place.draw(counts[-1], num_in, seed=2), place.draw(counts[-1], num_out, seed=3)
        whole, own = quantise_rows(x), slice(37, 37 + BLOCK // 2)
        alone = quantise_rows(x[own])
        share = (alone.codes_TK.view(torch.uint8) != whole.codes_TK[own].view(torch.uint8)).float().mean()
        beside: Row = {"shape": name, "beside": "other rows"}
        yield {"operation": "fp8 codes", **beside, "changed": float(share)}
        yield {"operation": "fp8 scales", **beside, "changed": changed(alone.scales_T, whole.scales_T[own])}
        for exact in (False, True):
            product = partial(fp8_forward, codes_NK=weight.codes_TK, scales_N=weight.scales_T, exact=exact)
            turned = partial(fp8_grad_input, codes_NK=weight.codes_TK, scales_N=weight.scales_T, exact=exact)
            for operation, run, rows in (("fp8 Y", product, x), ("fp8 dX", turned, dy)):
                last = run(rows)[:BLOCK]
                by_rows = {str(count): changed(run(rows[:count])[:BLOCK], last) for count in counts[:-1]}
                row: Row = {"operation": operation, "shape": name, "form": "exact" if exact else "fast"}
                yield row | {"beside": "more rows", "changed_by_rows": by_rows, "changed": max(by_rows.values())}


def _term_places(place: Place) -> Iterator[Row]:
    """Y of one trial with the term at each place, against its Y with the term behind the product."""
    num_in, widths = (32, (48, 16, 16)) if place.tiny else (4096, (4096, 1024, 1024))
    frozen = FrozenLinear(place.draw(sum(widths), num_in, seed=5, std=num_in**-0.5))
    trial = Tenant(seed=1, rank=16, dropout=0.0, lengths=(20, 9) if place.tiny else (700, 300, 77))
    draw = random.Random(0)
    others = [
        tenant(draw, seed, ranks=(8, 16), dropouts=(0.0,), long=20 if place.tiny else 1500) for seed in range(2, 6)
    ]
    pack = term_pack(place, [others[0], trial, *others[1:]], own=1, num_in=num_in, widths=widths)
    base = TileChoice(shrink_block=16, expand_block=16) if place.tiny else TileChoice()
    found = {}
    for term in (TermPlace.AFTER, TermPlace.BEFORE, TermPlace.INSIDE):
        tiles = replace(base, term_forward=term)
        y, _ = grouped_forward(
            pack.x_TK, frozen=frozen, parts=pack.parts, tables=pack.tables, row_keys_T=None, tiles=tiles
        )
        found[term] = y[pack.of_trial].clone()
        row: Row = {"operation": "place of the term (Y)", "form": f"{term} against {TermPlace.AFTER}"}
        yield row | {"beside": "itself", "changed": changed(found[term], found[TermPlace.AFTER])}


def _spec(trial_id: int, rank: int, *, batch_size: int, use_dora: bool) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=rank, lora_alpha=2.0 * rank, use_dora=use_dora),
        learning_rate=3e-3,
        batch_size=batch_size,
        num_steps=1000,
    )


def _step_rows(place: Place, numerics: Numerics) -> Iterator[Row]:
    """Gradients of a first step: a DoRA alone, cut and among others; a plain adapter kept and recomputed."""
    config = decoder_config("tiny" if place.tiny else "1b", num_layers=2)
    decoder = random_decoder(config, device=place.device, dtype=place.dtype)
    rows = rows_of_lengths([(2, 7)] * 64, vocab_size=512) if place.tiny else gsm8k_rows(64, vocab_size=512)
    dora, plain = _spec(0, 16, batch_size=3, use_dora=True), _spec(0, 16, batch_size=3, use_dora=False)
    others = [_spec(1 + n, r, batch_size=1 + n, use_dora=True) for n, r in enumerate((8, 16, 16 if place.tiny else 64))]
    if place.device == "cuda":
        _compile(decoder, numerics)

    def run(specs: Sequence[TrialSpec], **settings: object) -> tuple[Tensor, Mapping[str, Tensor]]:
        return _first_step(place, decoder, rows, specs, numerics=numerics, settings=settings)

    gradients, gains = run([dora])
    cases = {
        "again": ([dora], 8192),
        "split": ([dora], 20 if place.tiny else 300),
        "other DoRAs": ([*others[:1], dora, *others[1:]], 8192),
    }
    for beside, (specs, budget) in cases.items():
        found, found_gains = run(specs, token_budget=budget)
        row: Row = {"form": str(numerics), "beside": beside}
        pairs = [(found_gains[name], gain) for name, gain in gains.items()]
        yield {"operation": "DoRA's gains", **row, "changed": _all_changed(pairs)}
        # the last of the trained rows holds the magnitudes
        yield {"operation": "DoRA's dm", **row, "changed": changed(found[-1], gradients[-1])}
        yield {"operation": "DoRA's dA and dB", **row, "changed": changed(found[:-1], gradients[:-1])}
    kept, _ = run([plain])
    again, _ = run([plain], gradient_checkpointing=GradientCheckpointing.ALWAYS)
    row = {"operation": "recomputed activations", "form": str(numerics), "beside": "itself, kept"}
    yield row | {"changed": changed(again, kept)}


def _all_changed(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    found, expected = (torch.cat(side) for side in zip(*pairs, strict=True))
    return changed(found, expected)


def _compile(decoder: Decoder, numerics: Numerics) -> None:
    with KernelCompiler() as compiler:
        collect_launches(
            decoder, compiler=compiler, target_linears=decoder.linears, usual=200, pass_tokens=(600, 2000),
            adapters=[AdapterSpec(r=r, lora_alpha=1.0) for r in (16, 64)], numerics=numerics,
        )  # fmt: skip
        compiler.wait()


def _first_step(
    place: Place,
    decoder: Decoder,
    rows: TokenisedRows,
    specs: Sequence[TrialSpec],
    *,
    numerics: Numerics,
    settings: Mapping[str, object],
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return what AdamW's first moments of trial 0 are after a step, which is its gradient, and its gains before it."""
    defaults = ExecutorSettings(
        num_slots=len(specs),
        num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
        token_budget=8192,
        evaluation_token_budget=8192,
        numerics=numerics,
    )
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=replace(defaults, **settings),  # type: ignore[arg-type]
        device=place.device,
        compute_dtype=place.dtype,
    )
    for spec in specs:
        executor.load(spec)
    executor.evaluate(executor.resident, rows=rows, row_ids=range(3))
    slot = executor.slot_of(0)
    gains = {name: gain.clone() for (of, name), (gain, _) in executor.bank._magnitudes._gains.items() if of == slot}
    executor.step()
    return executor.state(0).adapter.moments["exp_avg"], gains
