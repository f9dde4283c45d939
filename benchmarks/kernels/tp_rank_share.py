"""One rank's share of a tensor parallel model with adapters: LoRA (NFS), BD-LoRA, swapped, S-LoRA's exchanges, merged.

One GPU computes what one of ``--degree`` GPUs would: a few layers of the shard, every row of a decode step of its own
adapter, then a prefill of one adapter. Collectives are spins of the length measured elsewhere (``--all-reduce-us``):
two a layer, and for S-LoRA four more. Attention reads no cache and the head is left out: both are alike for all.

S-LoRA is timed as BD-LoRA of equal size, whose factors take the bytes that S-LoRA's take on a rank, with its exchanges
between. Swapped BD-LoRA is timed with the zeros between its blocks, which kernels with an offset by block would skip.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.llama_shapes import SHAPES, decoder_config
from benchmarks.measure import RESULTS, median_replay, print_table, write_result
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal, rank_of_equal_size
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import Sample
from cohort.models.checkpoint_layout import checkpoint_layout, linear_shapes
from cohort.models.config import AttentionRule, DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.weights import freeze_weights
from cohort.ranks.tensor.base_shards import shard_config

_SHAPES = {
    **SHAPES,
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}


class SpinRegion:
    """Borders at which the device waits as long as a collective takes."""

    def __init__(self, *, cycles: int, exchange_cycles: int = 0) -> None:
        """Wait ``cycles`` for the base's sum at each end, and for S-LoRA's exchange before and within each block."""
        self._cycles, self._exchange_cycles = cycles, exchange_cycles

    def enter(self, x_TD: Tensor) -> Tensor:
        if x_TD.is_cuda and self._exchange_cycles:
            torch.cuda._sleep(self._exchange_cycles)
        return x_TD

    def leave(self, y_TD: Tensor) -> Tensor:
        if y_TD.is_cuda:
            torch.cuda._sleep(self._cycles)
            if self._exchange_cycles:
                torch.cuda._sleep(self._exchange_cycles)
        return y_TD


class PlainAttention:
    """Sequences of one length, one after the other, without a cache: capturable, and alike for all strategies."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._count, self.num_positions = len(lengths), lengths[0]

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; rows of no sequence get their values."""
        del layer_index, rule
        groups = q_THE.shape[1] // v_TGE.shape[1]
        o_THE = v_TGE.repeat_interleave(groups, dim=1)
        if self.num_positions > 1:
            used = self._count * self.num_positions
            q, k, v = (
                x[:used].view(self._count, self.num_positions, *x.shape[1:]).transpose(1, 2)
                for x in (q_THE, k_TGE, v_TGE)
            )
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
            o_THE[:used] = attended.transpose(1, 2).reshape(used, *q_THE.shape[1:])
        return o_THE


def shard_decoder(config: DecoderConfig, region: SpinRegion, *, device: str, dtype: torch.dtype) -> Decoder:
    """Return a decoder of a rank's sizes with random weights."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(std=0.02, generator=generator)

    tensors, products = freeze_weights((fused, drawn(fused.shape)) for fused in checkpoint_layout(config))
    return Decoder(config, tensors=tensors, products=products, region=region)


def _slora(exchange_us: float) -> str:
    return f"S-LoRA, exchange {exchange_us:g} us"


def strategies(layout: AdapterLayout, *, r: int, options: argparse.Namespace) -> dict[str, AdapterSpec | None]:
    """Return what each strategy serves for LoRA of rank ``r``; None is the base alone."""
    degree = options.degree
    bd = BlockDiagonal(nblocks=degree)
    swapped = BlockDiagonal(nblocks=degree, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)
    equal, double = rank_of_equal_size(layout.linears, r=r, blocks=bd), 2 * r // degree * degree
    same = rank_of_equal_size(layout.linears, r=r, blocks=swapped)
    return {
        "merged": None,
        "NFS": AdapterSpec(r=r, lora_alpha=2.0 * r),
        "BD, equal size": AdapterSpec(r=equal, lora_alpha=2.0 * equal, use_bdlora=bd),
        "BD, r' = 2r": AdapterSpec(r=max(degree, double), lora_alpha=4.0 * r, use_bdlora=bd),
        "swapped, equal size": AdapterSpec(r=same, lora_alpha=2.0 * same, use_bdlora=swapped),
        **{_slora(us): AdapterSpec(r=equal, lora_alpha=2.0 * equal, use_bdlora=bd) for us in options.exchange_us},
    }


def bank_of(layout: AdapterLayout, spec: AdapterSpec, *, count: int, degree: int, decoder: Decoder) -> AdapterBank:
    """Return a bank with ``count`` copies of rank 0's shard of an adapter."""
    shard = shard_adapter(layout, spec, torch.zeros(spec.r, layout.width), rank=0, size=degree)
    rows = -(-shard.spec.r // 16) * 16
    bank = AdapterBank(
        shard.layout,
        num_slots=count,
        num_rank_rows=rows * count,
        device=decoder.device,
        dtype=decoder.dtype,
        trains=False,
    )
    weights_rD = 0.01 * torch.randn(shard.weights_rD.shape)
    for _ in range(count):
        bank.insert(shard.spec, AdapterState(weights=weights_rD))
    return bank


def stream_work(decoder: Decoder, bank: AdapterBank | None, lengths: Sequence[int]) -> Callable[[], Tensor]:
    """Return a pass over sequences of ``lengths``, each of an adapter of its own."""
    slots = range(len(lengths)) if bank is not None else [-1] * len(lengths)
    samples = []
    for index, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        tokens = torch.randint(0, 100, (length,), dtype=torch.int32).numpy()
        sample = Sample(sample_id=index, tokens=tokens, trained=torch.zeros(length, dtype=torch.bool).numpy())
        samples.append(SlotSample(slot=slot, sample=sample))
    num_slots = 0 if bank is None else bank.num_slots
    batch = pack(samples, num_slots=num_slots, device=decoder.device)
    # as the engine asks: decoding row by row, prompts by the grouped kernels
    segments = replace(batch.segments, multiplies_slots=True)
    lora = None if bank is None else bank.context(segments)
    attention = PlainAttention(lengths)

    @torch.no_grad()
    def work() -> Tensor:
        return decoder.forward(batch.tokens_T, positions_T=batch.positions_T, attention=attention, lora=lora)

    return work


def milliseconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        return median_replay(work, budget_seconds=0.06)
    work()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measure(shape: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Give a row for each rank, strategy and number of requests of one shape."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    whole = _config(shape, options.layers)
    local, layout = shard_config(whole, size=options.degree), AdapterLayout(linear_shapes(whole))
    cycles = int(options.all_reduce_us * 1e-6 * _clock_rate())
    # S-LoRA: a gather for q, k, v and one for gate, up; a sum within o and one within down
    plain, *slora = (
        shard_decoder(
            local,
            SpinRegion(cycles=cycles, exchange_cycles=int(us * 1e-6 * _clock_rate())),
            device=device,
            dtype=dtype,
        )
        for us in (0.0, *options.exchange_us)
    )
    decoders = {_slora(us): decoder for us, decoder in zip(options.exchange_us, slora, strict=True)}
    merged: dict[str, float] = {}
    for r in options.ranks:
        for name, spec in strategies(layout, r=r, options=options).items():
            for kind, lengths in _streams(options):
                decoder = decoders.get(name, plain)
                bank = None
                if spec is not None:
                    bank = bank_of(layout, spec, count=len(lengths), degree=options.degree, decoder=decoder)
                layer_ms = milliseconds(stream_work(decoder, bank, lengths)) / options.layers
                if spec is None:
                    merged[kind] = layer_ms
                yield {
                    "shape": shape,
                    "r": r,
                    "stream": kind,
                    "strategy": name,
                    "rank_of_adapter": None if spec is None else spec.r,
                    "layer_us": layer_ms * 1e3,
                    "model_ms": layer_ms * _SHAPES[shape]["num_hidden_layers"],
                    "over_merged": layer_ms / merged[kind],
                }
                del bank


def _streams(options: argparse.Namespace) -> list[tuple[str, list[int]]]:
    decodes = [(f"decode {count}", [1] * count) for count in options.requests]
    return [*decodes, (f"prefill {options.prefill}", [options.prefill])]


def _config(shape: str, layers: int) -> DecoderConfig:
    if shape not in SHAPES:
        SHAPES[shape] = _SHAPES[shape]
    return replace(decoder_config(shape, num_layers=layers), vocab_size=1024)


def _clock_rate() -> float:
    # cycles that torch.cuda._sleep counts in a second, measured: the clock moves with the load
    if not torch.cuda.is_available():
        return 1.0
    cycles = 20_000_000
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    stop.record()
    stop.synchronize()
    return cycles / (start.elapsed_time(stop) * 1e-3)


def headline_of(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """Return S-LoRA's time over BD-LoRA's of equal size, at the largest rank, as far as both are there."""
    found = {(row["shape"], row["stream"], row["r"], row["strategy"]): row["layer_us"] for row in rows}
    headline = {}
    for shape in options.shapes:
        for index, count in enumerate(options.requests):
            slora, bd = (
                found.get((shape, f"decode {count}", options.ranks[-1], name))
                for name in (_slora(options.exchange_us[0]), "BD, equal size")
            )
            if slora is not None and bd is not None:
                suffix = f"_batch{count}" if index else ""
                headline[f"bd_vs_slora_decode_{shape}_tp{options.degree}{suffix}"] = slora / bd
    return headline


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["8b", "70b"])
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--all-reduce-us", type=float, default=10.0, help="the base's all-reduce (one-shot on 8 GPUs)")
    parser.add_argument(
        "--exchange-us",
        type=float,
        nargs="+",
        default=[10.0, 22.0],
        help="an exchange of S-LoRA's, by one kernel and by NCCL on 8 GPUs; the headline takes the first",
    )
    parser.add_argument("--tiny", action="store_true", help="a few seconds on a CPU, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "tp_rank_share.json")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.shapes, options.degree, options.layers, options.ranks = ["tiny"], 2, 2, [4]
        options.requests, options.prefill = [1, 3], 16
    rows: list[dict[str, Any]] = []
    for shape in options.shapes:
        for row in measure(shape, options):
            rows.append(row)
            # with each row, so that a stopped script leaves what it has
            write_result(
                options.out,
                question="What does a tensor parallel rank's share of adapters cost, by how they are divided?",
                headline=headline_of(rows, options),
                rows=rows,
                notes={
                    "all_reduce_us": options.all_reduce_us,
                    "exchange_us": options.exchange_us,
                    "layers": options.layers,
                },
            )
    shown = ("shape", "r", "stream", "strategy", "rank_of_adapter", "layer_us", "model_ms", "over_merged")
    print_table(rows, columns=shown)


if __name__ == "__main__":
    main()
