"""Runs the kinds of passes that a task will need, launching none of their kernels, so that all are compiled at once.

One size has every kind of pass; the others have those that can choose other tiles there. Where kernels are compiled
already, :func:`launch_once` launches them, which loads them.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.packed_linear.launch.tables import PRODUCT_ROWS, WIDEST_RANK, rank_class
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.few_layers import all_rows, few_layers, one_layer_each
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.memory_probe import ProbePass, probe_rows
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["collect_launches", "covering_sizes", "kinds_of_adapters", "launch_once", "measured_adapters"]


class _Passes(enum.IntEnum):
    """Which passes are run at a size."""

    STEP = 0
    TRAINING = 1
    """A step, and one as it is recorded. A pass without gradients launches the forward kernels of the training pass of
    its size; with dropout it does not, and is run as well."""
    ALL = 2
    """What differs without gradients follows from no size: the kernel of the loss, and norms that add a term."""


def _recorded_kinds(passes: _Passes, *, drops: bool) -> tuple[GraphKind, ...]:
    if passes is _Passes.STEP:
        return ()
    training = GraphKind.of_training(from_terms=False, drops=drops)
    return (training, GraphKind.MEASURES) if drops or passes is _Passes.ALL else (training,)


def kinds_of_adapters(adapters: Iterable[AdapterSpec]) -> tuple[AdapterSpec, ...]:
    """Return one adapter of each kind that launches kernels of its own: by padded rank, dropout and DoRA under it."""
    found: dict[tuple[int, int, bool, bool], AdapterSpec] = {}
    for spec in adapters:
        r, drops = spec.num_factor_rows, spec.lora_dropout > 0
        passes = -(-r // WIDEST_RANK)
        # its norms leave the input whole, so without dropout it reads and adds what a plain adapter does
        is_dora = spec.use_dora and drops
        kind = (passes, rank_class(min(r, WIDEST_RANK)), drops, is_dora)
        plain = AdapterSpec(r=r, lora_alpha=1.0, lora_dropout=0.1 if drops else 0.0, use_dora=is_dora)
        found.setdefault(kind, plain)
    return tuple(found[kind] for kind in sorted(found))


def measured_adapters(adapters: Sequence[AdapterSpec]) -> list[AdapterSpec]:
    """Return the adapters by which the memory of passes is measured: the narrowest and the widest, with factors alone.

    Their passes have no dropout, and so other kernels than those of a task whose trials all drop.
    """
    rows = [spec.num_rows_in_passes for spec in adapters]
    return [AdapterSpec(r=r, lora_alpha=1.0) for r in sorted({min(rows), max(rows)})] if rows else []


def collect_launches(
    decoder: Decoder,
    *,
    compiler: KernelCompiler,
    target_linears: Mapping[str, tuple[int, int]],
    adapters: Sequence[AdapterSpec],
    usual: int,
    pass_tokens: Sequence[int],
    step_tokens: Sequence[int] = (),
    first_tokens: Sequence[int] = (),
    numerics: Numerics = Numerics.FAST,
) -> None:
    """Hand the kernels of training, evaluation and recorded passes to workers.

    Args:
        decoder: On the GPU, with all of its layers there.
        adapters: One of each kind.
        usual: Tokens of a usual row.
        pass_tokens: Sizes of passes, which choose the tiles of products; at one of them every kind of pass is run.
        step_tokens: Sizes of which a training step is enough.
        first_tokens: Those of them whose kernels are needed first.
        numerics: Those of the passes.
    """
    if numerics is Numerics.EXACT:
        step_tokens = (*step_tokens, *_sizes_of_tiles(decoder, known=(*pass_tokens, *step_tokens)))
    layout = target_linears if isinstance(target_linears, AdapterLayout) else AdapterLayout(dict(target_linears))
    # a size that is wanted with its recordings is not run again for its step alone
    sizes = dict.fromkeys(step_tokens, _Passes.STEP) | dict.fromkeys(pass_tokens, _Passes.TRAINING)
    first = [tokens for tokens in first_tokens if tokens in sizes]
    others = sorted((tokens for tokens in sizes if tokens not in first), reverse=True)
    whole, *rest = first + others
    sizes[whole] = _Passes.ALL
    # the widest adapter of a pack decides what is launched: all of them together, as a sweep begins, and each alone
    together = [list(adapters)] if len(adapters) > 1 else []
    packs = [*together, *([spec] for spec in reversed(adapters))]
    run = functools.partial(_run, decoder, target_linears=target_linears, usual=usual, numerics=numerics)
    ends = contextlib.suppress(torch.OutOfMemoryError)
    # kernels are collected by size; left-out rows would give the last layer a size of its own
    with ends, all_rows(decoder), few_layers(decoder, layout=layout), compiler.collecting():
        for specs in packs:
            run(specs, sizes={whole: sizes[whole]})
            if rest:
                # what the first layer has of its own are norms, which have one kernel for all sizes
                with one_layer_each(decoder, layout=layout):
                    run(specs, sizes={tokens: sizes[tokens] for tokens in rest})
    release_cached(decoder.device)


def launch_once(
    decoder: Decoder,
    *,
    target_linears: Mapping[str, tuple[int, int]],
    adapters: Sequence[AdapterSpec],
    usual: int,
    pass_tokens: Sequence[int],
    tile_tokens: Sequence[int] = (),
    numerics: Numerics,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Launch the kernels of training, evaluation and recorded passes: the first launch of each loads it.

    Args:
        decoder: On the GPU, of any weights: no result is read.
        adapters: One of each kind; all of them in one pack.
        usual: Tokens of a usual row.
        pass_tokens: Sizes at which all kinds of passes are run.
        tile_tokens: Sizes at which products have other tiles; there passes that train are enough, as they are recorded.
        numerics: Those of the passes.
        is_enough: Asked before each pass; once it is true, kernels are left to the passes that need them.
    """
    # where one trial of a pass has dropout, kernels with dropout serve all
    plain = [spec for spec in adapters if not spec.lora_dropout]
    with contextlib.suppress(torch.OutOfMemoryError), few_layers(decoder, layout=AdapterLayout(dict(target_linears))):
        for specs in ([plain] if plain else []) + ([list(adapters)] if len(plain) < len(adapters) else []):
            if is_enough():
                break
            _run(
                decoder,
                specs,
                target_linears=target_linears,
                usual=usual,
                sizes=dict.fromkeys((*pass_tokens, *tile_tokens), _Passes.TRAINING)
                | dict.fromkeys(pass_tokens, _Passes.ALL),
                numerics=numerics,
                is_enough=is_enough,
            )
    release_cached(decoder.device)


def _sizes_of_tiles(decoder: Decoder, *, known: Sequence[int]) -> list[int]:
    """Return sizes of passes whose exact products have tiles that those of the ``known`` sizes lack."""
    if describe_backend(decoder.device).backend is not Backend.TRITON:
        return []
    # where Triton is
    from cohort.kernels.packed_linear.hopper.launch import runs_hopper, tile_strips

    if not runs_hopper(decoder.device):
        return []
    programs = torch.cuda.get_device_properties(decoder.device).multi_processor_count
    widths = {width for product in decoder.products for width in (product.out_features, product.in_features)}
    return covering_sizes(
        sorted(widths),
        known=known,
        tiles=lambda rows, width: {columns for _, columns in tile_strips(rows, width, programs=programs)},
    )


def covering_sizes(widths: Sequence[int], *, known: Sequence[int], tiles: Callable[[int, int], set[int]]) -> list[int]:
    """Return few sizes at which products of ``widths`` have every tile that they have up to the largest ``known`` one.

    Args:
        known: Sizes that are run anyway.
        tiles: From rows of a pass and the width of a product to what its tiles are.
    """

    def kinds(rows: int) -> set[tuple[int, int]]:
        return {(width, columns) for width in widths for columns in tiles(rows, width)}

    # tiles have as many rows, so sizes between have the tiles of the next
    sizes = {rows: kinds(rows) for rows in range(PRODUCT_ROWS, max(known) + 1, PRODUCT_ROWS)}
    missing = set[tuple[int, int]]().union(*sizes.values()) - set[tuple[int, int]]().union(*map(kinds, known))
    found: list[int] = []
    while missing:
        best = max(sizes, key=lambda rows: (len(sizes[rows] & missing), -rows))
        missing -= sizes[best]
        found.append(best)
    return found


def _lengths(tokens: int, *, usual: int, num_trials: int) -> tuple[int, ...]:
    """Return the rows of each trial in a pass of ``tokens``; a trial alone fills it to the last one."""
    if num_trials > 1:
        return (usual,) * max(1, round(tokens / usual / num_trials))
    if tokens <= usual:
        # tiles follow from the rows of a pass: a usual row would be another size than was asked for
        return (max(2, tokens),)
    whole, rest = divmod(tokens, usual)
    # a row of one token trains nothing
    return (*(usual,) * (whole - 1), usual + rest) if rest == 1 else (*(usual,) * whole, *((rest,) if rest else ()))


def _run(
    decoder: Decoder,
    specs: Sequence[AdapterSpec],
    *,
    target_linears: Mapping[str, tuple[int, int]],
    usual: int,
    sizes: Mapping[int, _Passes],
    numerics: Numerics = Numerics.FAST,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    executor = Executor(
        decoder,
        target_linears=target_linears,
        train_rows=probe_rows(ProbePass(r=1, lengths=(2,)), vocabulary=2),
        settings=ExecutorSettings(
            num_slots=len(specs),
            num_rank_rows=sum(aligned_rank(spec.num_rows) for spec in specs),
            token_budget=1 << 40,
            evaluation_token_budget=1 << 40,
            numerics=numerics,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    if executor.bank.is_exact:
        # each answer is waited for, and of kernels that are not launched there is none
        decoder.use_exact_products(asks_blas=False)
    recorded = CapturedPasses(decoder, executor.bank, most_rows=max(sizes))
    drops = any(spec.lora_dropout > 0 for spec in specs)
    for tokens, passes in sizes.items():
        if is_enough():
            return
        lengths = _lengths(tokens, usual=usual, num_trials=len(specs))
        each = len(lengths)
        rows = probe_rows(ProbePass(r=1, lengths=lengths), vocabulary=decoder.config.vocab_size)
        for trial_id, adapter in enumerate(specs):
            # drawing weights takes longer than all passes; a magnitude of zero would be none
            weights_rD = torch.ones(1, 1, device=decoder.device).expand(
                adapter.num_trained_rows, executor.bank.layout.width
            )
            spec = TrialSpec(
                trial_id=trial_id, seed=0, adapter=adapter, learning_rate=0.0, batch_size=each, num_steps=1
            )
            executor.load(spec, TrialState(adapter=AdapterState(weights=weights_rD)), rows=rows)
        parts: list[Callable[[], object]] = [executor.step]
        if passes is _Passes.ALL or (drops and passes is _Passes.TRAINING):
            parts.append(functools.partial(executor.evaluate, executor.resident, rows=rows, row_ids=range(len(rows))))
        # passes with magnitudes are never recorded
        kinds = () if executor.bank.has_magnitudes else _recorded_kinds(passes, drops=drops)
        need = PassShape(num_rows=tokens, num_sequences=each * len(specs), length=usual, num_trained=tokens)
        parts += [functools.partial(recorded.launch, need, kind=kind) for kind in kinds]
        for launch in parts:
            if is_enough():
                return
            launch()
        for trial_id in executor.resident:
            executor.drop(trial_id)
