"""How fast does a stack of 70B layers train when some of them pass through the GPU from host memory?

A part of the layers of Llama-3.1-70B, so that the stack also fits whole: every layer resident, then as many streamed as
23 of 80 are. Before anything is timed, both train three steps and must have the same losses and weights, bit for bit;
for that neither has spare columns. Passes are recomputed, as they are for a 70B model at these sizes.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from benchmarks.several_gpus.part import Part
from benchmarks.steps.step_timing import median_seconds, trial_specs
from cohort.core.memory_records import GradientCheckpointing
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.streaming.host_source import HostSource
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.models.streaming.weight_ring import NUM_BUFFERS, spread_layers
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["QUESTION", "measure"]

QUESTION = "What share of its resident rate does a stack of 70B layers keep when layers are streamed from host memory?"
# 23 of 80 layers are what a 70B model leaves over on a GPU of 141 GB
SHARE = 23 / 80
RANKS = (16, 16, 16, 16)


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    shape = "tiny" if options.tiny else "70b"
    num_layers = options.num_layers or (8 if options.tiny else 24)
    config = decoder_config(shape, num_layers=num_layers)
    count = options.streamed or max(NUM_BUFFERS + 1, round(num_layers * SHARE))
    sizes = options.tokens or ([256, 512] if options.tiny else [1024, 2048, 4096, 8192])
    device = "cuda" if on_gpu else "cpu"
    modes = [0, count] if not options.no_resident else [count]
    found: dict[int, dict[str, Any]] = {}
    for streamed in modes:
        found[streamed] = _one(config, streamed, sizes=sizes, device=device)
    rows: list[dict[str, Any]] = []
    for tokens in sizes:
        row: dict[str, Any] = {"tokens": tokens, "streamed_ms": found[count]["seconds"][tokens] * 1e3}
        if 0 in found:
            row["resident_ms"] = found[0]["seconds"][tokens] * 1e3
            row["share"] = row["resident_ms"] / row["streamed_ms"]
        rows.append(row)
    at = next((row for row in rows if row["tokens"] >= 4096), rows[-1])
    headline: dict[str, float] = {
        "host_streamed_70b_tokens_per_second": at["tokens"] / at["streamed_ms"] * 1e3,
        "host_copy_gb_per_second": found[count]["copy_gb_per_second"],
    }
    if 0 in found:
        headline = {
            "host_streamed_70b_share": at["share"],
            **headline,
            "resident_gib": found[0]["peak_gib"],
            "same_bits": float(_same(found[0]["trained"], found[count]["trained"])),
        }
    headline["streamed_gib"] = found[count]["peak_gib"]
    notes = {
        "layers": num_layers,
        "streamed_layers": count,
        "layer_bytes": found[count]["layer_bytes"],
        "fetches_per_step": found[count]["fetches"],
        "recomputed": True,
        "ranks": RANKS,
        "seconds_to_load": {str(key): value["load_seconds"] for key, value in found.items()},
    }
    return Part(headline=headline, rows=rows, columns=("tokens", "resident_ms", "streamed_ms", "share"), notes=notes)


def _one(config: DecoderConfig, streamed: int, *, sizes: list[int], device: str) -> dict[str, Any]:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    decoder = _decoder(config, streamed, device=device)
    load_seconds = time.perf_counter() - began
    found: dict[str, Any] = {"load_seconds": load_seconds, "seconds": {}, "fetches": 0, "layer_bytes": 0}
    # weights that were recorded are never moved: without spare columns both kinds run the same kernels
    decoder.is_recorded = True
    found["trained"] = _trained(decoder, sizes[0], device=device)
    decoder.is_recorded = False
    for tokens in sizes:
        executor = _executor(decoder, tokens, device=device)
        found["seconds"][tokens] = median_seconds(executor.step, repeats=4, warmups=2)
        if (ring := decoder.ring) is not None:
            before = ring.num_fetches
            executor.step()
            found["fetches"] = ring.num_fetches - before
        del executor
        _free()
    if (ring := decoder.ring) is not None:
        found["layer_bytes"] = ring.num_bytes // NUM_BUFFERS
        found["copy_gb_per_second"] = _copy_rate(decoder)
    found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else decoder.num_bytes / 2**30
    del decoder
    _free()
    return found


def _decoder(config: DecoderConfig, streamed: int, *, device: str) -> Decoder:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    streaming = None
    if streamed:
        layers = spread_layers(streamed, num_layers=config.num_layers)
        on = torch.device(device)
        streaming = LayerStreaming(layers, source=HostSource(on), device=on)
    return random_decoder(config, device=device, dtype=dtype, streaming=streaming)


def _executor(decoder: Decoder, tokens: int, *, device: str) -> Executor:
    """Return an executor whose steps have ``tokens`` tokens, in rows of 256 with a prompt of half of that."""
    length = min(256, tokens // len(RANKS))
    per_trial = max(1, tokens // (length * len(RANKS)))
    rows = rows_of_lengths(
        [(length // 2, length - length // 2)] * (8 * per_trial), vocab_size=decoder.config.vocab_size
    )
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(RANKS),
            num_rank_rows=sum(RANKS),
            token_budget=2 * tokens,
            evaluation_token_budget=2 * tokens,
            gradient_checkpointing=GradientCheckpointing.ALWAYS,
        ),
        device=device,
        compute_dtype=decoder.dtype,
    )
    for spec in trial_specs(RANKS, batch_size=per_trial):
        executor.load(spec)
    return executor


def _trained(decoder: Decoder, tokens: int, *, device: str) -> tuple[list[tuple[float, float]], torch.Tensor]:
    """Return losses and norms of three steps, and a checksum of the weights after them."""
    executor = _executor(decoder, tokens, device=device)
    losses = [(event.loss, event.grad_norm) for _ in range(3) for event in executor.step()]
    weights = executor.bank.weights_RD.double()
    sums = torch.stack([weights.sum(dim=1), (weights * weights).sum(dim=1)]).cpu()
    del executor, weights
    _free()
    return losses, sums


def _same(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0] and torch.equal(one[1], other[1]))


def _copy_rate(decoder: Decoder) -> float:
    """Return the bytes a second of fetches alone, in GB/s."""
    ring = decoder.ring
    assert ring is not None, "only a streamed decoder copies"

    def forward() -> None:
        for layer in ring.layers:
            ring.need(layer)
            ring.done(layer, backward=False)

    forward()
    before = ring.num_fetches
    seconds = median_seconds(forward, repeats=3, warmups=1)
    per_pass = (ring.num_fetches - before) / 4
    return per_pass * ring.num_bytes / NUM_BUFFERS / seconds / 1e9


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
