"""``cohort doctor --measure``: what a step costs in exact numerics, over a fast one, for a base model's shape.

No weights are read: a few layers of random numbers take the same kernels, and both kinds of step take turns on them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.machine.exact_steps import keep_exact_steps
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.weights import freeze_weights
from cohort.scheduling.cost.exact_ratios import ExactStep, LayerWidths, gpu_kind
from cohort.training.cuda_graphs.recorded_shapes import launching_rows, most_recorded_tokens
from cohort.training.device_memory import release_cached
from cohort.training.exact_numerics import set_numerics
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["MEASURED_PACKS", "MeasuredPack", "measure_exact_steps"]


@dataclass(frozen=True, kw_only=True)
class MeasuredPack:
    """Trials of rank 16 that train together while both kinds of step are timed.

    Attributes:
        num_trials, batch_size, length: How many, rows of each in a step, tokens of a row.
        warmups: Steps before the timed ones, enough for passes of this size to be recorded.
        launched: Whether no pass is recorded, as none of DoRA is.
    """

    num_trials: int
    batch_size: int
    length: int
    warmups: int
    launched: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.num_trials * self.batch_size * self.length


# more steps than it takes until a pass is replayed as a graph of its own size
MEASURED_PACKS = (
    MeasuredPack(num_trials=4, batch_size=1, length=255, warmups=28),
    MeasuredPack(num_trials=8, batch_size=1, length=511, warmups=14),
    MeasuredPack(num_trials=8, batch_size=2, length=512, warmups=6),
    # larger ones wait less for the host
    MeasuredPack(num_trials=8, batch_size=1, length=511, warmups=3, launched=True),
)
_MOST_LAYERS, _NUM_ROWS = 8, 64
_TIMED = 9


def measure_exact_steps(
    config: DecoderConfig,
    *,
    device: torch.device,
    say: Callable[[str], None],
    packs: tuple[MeasuredPack, ...] = MEASURED_PACKS,
) -> tuple[ExactStep, ...]:
    """Time steps of both kinds, keep what they cost for later runs, and return it; nothing where memory is too small.

    Args:
        config: The base model's; of its layers a few are taken.
        packs: In this order; the first that does not fit ends it.

    Raises:
        StorageFullError: the disk is full.
        OSError: the cache cannot be written.
    """
    few = min(config.num_layers, _MOST_LAYERS)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    widths = LayerWidths(hidden_size=config.hidden_size, intermediate_size=config.intermediate_size)
    found: list[ExactStep] = []
    try:
        decoder = _random_decoder(replace(config, num_layers=few, windows=config.windows[:few]), device)
        for pack in packs:
            launched = ", launched kernel by kernel," if pack.launched else ""
            say(f"timing steps of {pack.tokens:,} tokens{launched} in exact and in fast numerics")
            seconds = _step_seconds(decoder, pack)
            ratio = seconds[Numerics.EXACT] / seconds[Numerics.FAST]
            measured = ExactStep(gpu=gpu_kind(name), widths=widths, tokens=pack.tokens, ratio=ratio)
            found.append(replace(measured, launched=pack.launched))
    except torch.OutOfMemoryError:
        say("a larger step does not fit this GPU")
    finally:
        gc.collect()
        release_cached(device)
    if found:
        keep_exact_steps(found)
    return tuple(found)


def _random_decoder(config: DecoderConfig, device: torch.device) -> Decoder:
    """Return a decoder of random numbers: zeros take less power, and so other clocks."""
    dtype = torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(std=0.02)

    tensors, products = freeze_weights((fused, drawn(fused.shape)) for fused in checkpoint_layout(config))
    return Decoder(config, tensors=tensors, products=products)


def _step_seconds(decoder: Decoder, pack: MeasuredPack) -> Mapping[Numerics, float]:
    """Return the median seconds of a step of both kinds, which take turns on one decoder."""
    executors = {numerics: _executor(decoder, pack, numerics) for numerics in Numerics}
    times: dict[Numerics, list[float]] = {numerics: [] for numerics in Numerics}
    for turn in range(pack.warmups + _TIMED):
        # every other turn goes backwards: what comes after a step depends on the clocks and the caches that it leaves
        for numerics in list(Numerics)[:: -1 if turn % 2 else 1]:
            set_numerics(numerics, decoder=decoder, bank=executors[numerics].bank)
            _wait(decoder.device)
            begun = time.perf_counter()
            executors[numerics].step()
            _wait(decoder.device)
            if turn >= pack.warmups:
                times[numerics].append(time.perf_counter() - begun)
    return {numerics: statistics.median(found) for numerics, found in times.items()}


def _executor(decoder: Decoder, pack: MeasuredPack, numerics: Numerics) -> Executor:
    adapter = AdapterSpec(r=16, lora_alpha=32.0)
    rows, device = _rows(pack, decoder.config.vocab_size), decoder.device
    if device.type == "cuda":
        with KernelCompiler() as compiler:
            collect_launches(
                decoder,
                compiler=compiler,
                target_linears=decoder.linears,
                adapters=[adapter],
                usual=pack.length,
                pass_tokens=(pack.tokens,),
                numerics=numerics,
            )
            compiler.wait()
    # those that a run records
    most = most_recorded_tokens(numerics, launching=launching_rows(decoder.config))
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=pack.num_trials,
            num_rank_rows=pack.num_trials * aligned_rank(adapter.num_rows),
            token_budget=pack.tokens,
            evaluation_token_budget=pack.tokens,
            graph_tokens=min(most, 2 * pack.tokens) if device.type == "cuda" and not pack.launched else 0,
            numerics=numerics,
        ),
        device=device,
        compute_dtype=decoder.dtype,
    )
    for trial_id in range(pack.num_trials):
        executor.load(
            TrialSpec(
                trial_id=trial_id,
                seed=trial_id,
                adapter=adapter,
                learning_rate=1e-4,
                batch_size=pack.batch_size,
                num_steps=10_000,
            )
        )
    return executor


def _rows(pack: MeasuredPack, vocab_size: int) -> TokenisedRows:
    """Return rows of random tokens, all of which but the first are trained."""
    offsets = np.arange(_NUM_ROWS + 1, dtype=np.int64) * pack.length
    trained = np.ones(offsets[-1], dtype=np.bool_)
    trained[offsets[:-1]] = False
    return TokenisedRows(
        tokens_T=np.random.default_rng(0).integers(0, vocab_size, size=offsets[-1]).astype(np.int32),
        trained_T=trained,
        offsets=offsets,
        prompts=("",) * _NUM_ROWS,
        references=("",) * _NUM_ROWS,
        sources=tuple(f"random:{row + 1}" for row in range(_NUM_ROWS)),
        fingerprint="random",
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
