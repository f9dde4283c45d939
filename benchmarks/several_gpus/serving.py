"""Decoding over several GPUs: what each way of dividing adapters costs, with its real collectives.

Rank 0 runs the serving engine, the others what it tells them, as `cohort serve --tensor-parallel-size` does. The model
has true shapes and random weights; every request has an adapter of its own. A request is 512 tokens and 48 answered.
S-LoRA's exchanges run through NCCL and, where they are sums, in one kernel like the base's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.llama_shapes import decoder_config
from benchmarks.measure import RESULTS, write_result
from benchmarks.serving.adapter_bank import RandomAdapters
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.slora_rows import attach_slora_rows, replace_linears, slora_layout
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal, rank_of_equal_size
from cohort.models.checkpoint_layout import checkpoint_layout, linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import freeze_weights
from cohort.ranks.calls import verb
from cohort.ranks.serving.divided_ranks import DividedRanks
from cohort.ranks.tensor.base_shards import shard_config
from cohort.ranks.tensor.groups import DistributedGroup, RankGroup
from cohort.ranks.tensor.one_shot_group import OneShotGroup
from cohort.ranks.tensor.regions import Region
from cohort.ranks.tensor.vocabulary_head import VocabularyHead
from cohort.ranks.transport import Channel
from cohort.serving.engine import ServingEngine
from cohort.serving.kv_blocks import blocks_for
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import PassRecord
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.sequence import SequenceRequest

QUESTION = "What does decoding cost over several GPUs, by how adapters are divided over them?"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement: a way to divide, the rank of the plain LoRA it stands for, and requests at once."""

    strategy: str
    r: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of all measurements."""

    shape: str
    num_layers: int | None
    prompt: int
    new: int
    ranks: tuple[int, ...]
    batches: tuple[int, ...]

    def cases(self) -> Iterator[Case]:
        for batch in self.batches:
            yield Case(strategy="base", r=0, batch=batch)
            for r in self.ranks:
                for strategy in ("NFS", "BD, equal size", "BD, r' = 2r", "swapped, equal size", "S-LoRA"):
                    yield Case(strategy=strategy, r=r, batch=batch)


def random_shard(config: DecoderConfig, group: RankGroup, *, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Return a rank's shard with random weights."""
    local = shard_config(config, size=group.size)
    generator = torch.Generator(device).manual_seed(group.rank)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(std=0.02, generator=generator)

    layout = [fused for fused in checkpoint_layout(local) if fused.name != "head"]
    tensors, products = freeze_weights((fused, drawn(fused.shape)) for fused in layout)
    table_VD = tensors["embed"] if config.tie_word_embeddings else drawn((config.vocab_size, config.hidden_size))
    rows = VocabularyHead(PLAIN.freeze(table_VD, None), group, vocab_size=config.vocab_size).rows
    products["head"] = VocabularyHead(PLAIN.freeze(table_VD[rows].clone(), None), group, vocab_size=config.vocab_size)
    return Decoder(local, tensors=tensors, products=products, region=Region(group))


def adapters_of(case: Case, decoder: Decoder, layout: AdapterLayout, *, group: RankGroup) -> RandomAdapters | None:
    """Return a rank's shards of as many adapters as requests."""
    size = group.size
    if case.strategy == "base":
        return None
    if case.strategy == "S-LoRA":
        return RandomAdapters(decoder, count=case.batch, r=case.r, layout=slora_layout(layout, size=size))
    bd = BlockDiagonal(nblocks=size)
    swapped = BlockDiagonal(nblocks=size, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)
    blocks = {"NFS": None, "swapped, equal size": swapped}.get(case.strategy, bd)
    r = case.r
    if blocks is not None:
        equal = rank_of_equal_size(layout.linears, r=r, blocks=blocks)
        r = 2 * r // size * size if case.strategy == "BD, r' = 2r" else equal
    spec = AdapterSpec(r=r, lora_alpha=2.0 * r, use_bdlora=blocks)
    rows = torch.empty(r, layout.width, device="meta")
    return RandomAdapters(
        decoder, count=case.batch, r=shard_adapter(layout, spec, rows, rank=group.rank, size=size).spec.r
    )


class Follower:
    """A rank that takes part in the passes of rank 0's engine."""

    def __init__(self, decoder: Decoder, adapters: RandomAdapters) -> None:
        self._decoder, self._adapters = decoder, adapters
        self._computer: PassComputer | None = None

    @verb
    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        self._computer = PassComputer(
            self._decoder,
            adapters=self._adapters,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            records_graphs=records_graphs,
        )

    @verb
    def compute(self, record: PassRecord) -> None:
        assert self._computer is not None, "the cache is opened first"
        self._computer.compute(record)


class Link:
    """The way to another rank."""

    def __init__(self, connection: Connection) -> None:
        self._channel = Channel(connection)

    def ask(self, call: object) -> None:
        self._channel.send(call)


def decode(engine: ServingEngine, case: Case, sizes: Sizes, *, device: torch.device) -> list[float]:
    """Return the seconds of passes that only decode, in order of size."""
    for index in range(case.batch):
        tokens = [(7 * index + 3 * place) % 100 + 1 for place in range(sizes.prompt)]
        adapter = None if case.strategy == "base" else index
        engine.submit(SequenceRequest(prompt_tokens=tokens, max_new_tokens=sizes.new, adapter=adapter))
    seconds, seen = [], 0
    while engine.has_work:
        before = time.perf_counter()
        outputs = engine.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        # the first pass that only decodes records its graph
        if seen > case.batch and len(outputs) == case.batch:
            seconds.append(time.perf_counter() - before)
        seen += len(outputs)
    return sorted(seconds[2:])


def _rank(rank: int, num_ranks: int, sizes: Sizes, folder: str, ends: list[Connection], out: Path | None) -> None:
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    torch.set_num_threads(1)
    if on_gpu:
        torch.cuda.set_device(device)
    store = f"file://{folder}/group"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=store, rank=rank, world_size=num_ranks)
    group = OneShotGroup.of(device, dtype) if on_gpu else DistributedGroup()
    config = decoder_config(sizes.shape, num_layers=sizes.num_layers)
    decoder, layout = random_shard(config, group, device=device, dtype=dtype), AdapterLayout(linear_shapes(config))
    plain = [layer.linears for layer in decoder.layers]
    rows: list[dict[str, Any]] = []
    for case in sizes.cases():
        for layer, linears in zip(decoder.layers, plain, strict=True):
            own = iter(linears)
            replace_linears(layer, lambda _, own=own: next(own))
        if case.strategy == "S-LoRA":
            attach_slora_rows(decoder, group)
        adapters = adapters_of(case, decoder, layout, group=group)
        bank = adapters or RandomAdapters(decoder, count=1, r=16)
        if rank == 0:
            rows.append(_lead(case, sizes, decoder, bank, layout, ends, device))
            _write(rows, sizes, num_ranks, out)
        else:
            _follow(Follower(decoder, bank), ends[0])
        del bank, adapters
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


def _lead(
    case: Case,
    sizes: Sizes,
    decoder: Decoder,
    adapters: RandomAdapters,
    layout: AdapterLayout,
    ends: list[Connection],
    device: torch.device,
) -> dict[str, Any]:
    length = sizes.prompt + sizes.new + 1
    links = [Link(end) for end in ends]
    engine = ServingEngine(
        decoder,
        adapters=adapters,
        num_blocks=case.batch * (blocks_for(length) + 1),
        settings=SchedulerSettings(max_num_seqs=case.batch, max_num_batched_tokens=4096, finds_prefixes=False),
        max_model_len=length,
        records_graphs=True,
        ranks=DividedRanks(layout, links),
    )
    seconds = decode(engine, case, sizes, device=device)
    for link in links:
        link.ask(None)
    median = statistics.median(seconds)
    row = {
        "strategy": case.strategy,
        "r": case.r,
        "batch": case.batch,
        "token_ms_p50": median * 1e3,
        "token_ms_p90": seconds[int(0.9 * (len(seconds) - 1))] * 1e3,
        "tokens_per_second": case.batch / median,
        "graph_passes": 0 if engine.graphs is None else engine.graphs.num_replays,
    }
    print(row, flush=True)
    return row


def _follow(follower: Follower, end: Connection) -> None:
    channel = Channel(end)
    while (call := channel.receive()) is not None:
        call.carried_out_by(follower)


def headline_of(rows: list[dict[str, Any]], sizes: Sizes, *, num_ranks: int) -> dict[str, float]:
    """Return each way's time over the base's, and S-LoRA's over BD's of equal size, as far as they are there."""
    found = {(row["strategy"], row["r"], row["batch"]): row["token_ms_p50"] for row in rows}
    headline = {}
    short = {"NFS": "nfs", "BD, equal size": "bd", "swapped, equal size": "swapped", "S-LoRA": "slora"}
    for (strategy, r, batch), ms in found.items():
        if strategy in short:
            headline[f"{short[strategy]}_tax_tp{num_ranks}_r{r}_batch{batch}"] = ms / found["base", 0, batch]
        if strategy == "S-LoRA":
            name = f"bd_vs_slora_decode_{sizes.shape}_tp{num_ranks}_r{r}_batch{batch}"
            headline[name] = ms / found["BD, equal size", r, batch]
    return headline


def _write(rows: list[dict[str, Any]], sizes: Sizes, num_ranks: int, out: Path | None) -> None:
    write_result(
        out or RESULTS / f"several_gpus_serving_{sizes.shape}.json",
        question=QUESTION,
        headline=headline_of(rows, sizes, num_ranks=num_ranks),
        rows=rows,
        notes={"gpus": num_ranks, "prompt": sizes.prompt, "new": sizes.new},
    )


def measure(options: argparse.Namespace) -> Part:
    """Start the ranks; rank 0 writes a row at a time, so that a stopped script leaves what it has."""
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    tiny = options.tiny
    sizes = Sizes(
        shape="tiny" if tiny else "8b",
        num_layers=None if tiny else options.num_layers,
        prompt=20 if tiny else 512,
        new=8 if tiny else 48,
        ranks=(4,) if tiny else (16, 64),
        batches=(1, 3) if tiny else (1, 32),
    )
    out = options.out or RESULTS / f"several_gpus_serving{'_tiny' if tiny else ''}.json"
    context = mp.get_context("spawn")
    pairs = [context.Pipe() for _ in range(num_ranks - 1)]
    with tempfile.TemporaryDirectory() as folder:
        ends = [[ours for ours, _ in pairs], *([theirs] for _, theirs in pairs)]
        processes = [
            context.Process(target=_rank, args=(rank, num_ranks, sizes, folder, ends[rank], out))
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"a rank failed: {[process.exitcode for process in processes]}")
    found = json.loads(out.read_text(encoding="utf-8"))
    return Part(
        headline=found["headline"],
        rows=found["rows"],
        columns=("strategy", "r", "batch", "token_ms_p50", "token_ms_p90", "tokens_per_second", "graph_passes"),
        notes=found["notes"],
    )
