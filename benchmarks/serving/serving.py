"""What adapters cost when they are served: tokens per second, latency, and the same work by transformers with PEFT.

Closed loop: as many requests as the batch holds, from the first token to the last. Open loop: requests come at random
times at a fixed rate. The model has true shapes and random weights; all adapters adapt all linears at rank 16.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, hf_config, num_parameters, random_decoder
from benchmarks.measure import RESULTS, copy_ceiling, matrix_ceiling, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.serving.adapter_bank import RandomAdapters
from cohort.models.decoder import Decoder
from cohort.serving.engine import ServingEngine
from cohort.serving.kv_blocks import blocks_for
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.sequence import SequenceRequest

RANK = 16


def engine_for(decoder: Decoder, adapters: RandomAdapters, *, batch: int, length: int) -> ServingEngine:
    return ServingEngine(
        decoder,
        adapters=adapters,
        num_blocks=batch * (blocks_for(length) + 1),
        settings=SchedulerSettings(max_num_seqs=batch, max_num_batched_tokens=max(2048, batch), finds_prefixes=False),
        max_model_len=length,
        records_graphs=True,
    )


def request(index: int, *, prompt: int, new: int, adapter: int | None, vocab_size: int) -> SequenceRequest:
    chance = random.Random(index)
    tokens = [chance.randrange(vocab_size) for _ in range(prompt)]
    return SequenceRequest(prompt_tokens=tokens, max_new_tokens=new, adapter=adapter, seed=index)


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def closed_loop(
    decoder: Decoder, adapters: RandomAdapters, *, batch: int, count: int, prompt: int, new: int
) -> dict[str, Any]:
    """Decode ``batch`` requests over ``count`` adapters (0: the base model); the first requests warm up."""
    engine = engine_for(decoder, adapters, batch=batch, length=prompt + new + 1)
    seconds: list[float] = []
    first: list[float] = []
    for turn in range(2):
        begun = time.perf_counter()
        for index in range(batch):
            engine.submit(
                request(
                    index + batch * turn,
                    prompt=prompt,
                    new=new,
                    adapter=index % count if count else None,
                    vocab_size=decoder.config.vocab_size,
                )
            )
        seen: set[int] = set()
        seconds, first = [], []
        while engine.has_work:
            before = time.perf_counter()
            outputs = engine.step()
            finish(decoder.device)
            after = time.perf_counter()
            new_ones = {output.number for output in outputs} - seen
            first += [after - begun] * len(new_ones)
            seen |= new_ones
            # passes with a part of a prompt in them are not decoding
            if len(outputs) == batch and not new_ones:
                seconds.append(after - before)
    own = sorted(seconds)
    median = statistics.median(own)
    return {
        "loop": "closed",
        "batch": batch,
        "adapters": count,
        "tokens_per_second": batch / median,
        "token_ms_p50": median * 1e3,
        "token_ms_p90": own[int(0.9 * (len(own) - 1))] * 1e3,
        "first_ms_p50": statistics.median(first) * 1e3,
        "first_ms_p90": sorted(first)[int(0.9 * (len(first) - 1))] * 1e3,
        "graph_passes": 0 if engine.graphs is None else engine.graphs.num_replays,
    }


def open_loop(
    decoder: Decoder, adapters: RandomAdapters, *, rate: float, count: int, requests: int, prompt: int, new: int
) -> dict[str, Any]:
    """Serve requests that come at ``rate`` a second, at random times."""
    engine = engine_for(decoder, adapters, batch=64, length=prompt + new + 1)
    chance = random.Random(0)
    arrivals, at = [], 0.0
    for _ in range(requests):
        at += chance.expovariate(rate)
        arrivals.append(at)
    # graphs are recorded when a number of rows is first seen, which is not what is timed
    for size in (64, 48, 32, 16):
        for index in range(size):
            adapter = index % count if count else None
            engine.submit(request(index, prompt=16, new=3, adapter=adapter, vocab_size=decoder.config.vocab_size))
        while engine.has_work:
            engine.step()
    finish(decoder.device)
    begun, submitted = time.perf_counter(), 0
    asked: dict[int, float] = {}
    latest: dict[int, float] = {}
    first: list[float] = []
    gaps: list[float] = []
    tokens = 0
    while submitted < requests or engine.has_work:
        now = time.perf_counter() - begun
        while submitted < requests and arrivals[submitted] <= now:
            adapter = submitted % count if count else None
            given = request(submitted, prompt=prompt, new=new, adapter=adapter, vocab_size=decoder.config.vocab_size)
            asked[engine.submit(given)] = arrivals[submitted]
            submitted += 1
        if not engine.has_work:
            time.sleep(max(0.0, arrivals[submitted] - now))
            continue
        outputs = engine.step()
        now = time.perf_counter() - begun
        for output in outputs:
            tokens += 1
            if output.number in latest:
                gaps.append(now - latest[output.number])
            else:
                first.append(now - asked[output.number])
            latest[output.number] = now
    gaps, first = sorted(gaps), sorted(first)
    return {
        "loop": f"open, {rate:g}/s",
        "batch": 64,
        "adapters": count,
        "tokens_per_second": tokens / (time.perf_counter() - begun),
        "token_ms_p50": statistics.median(gaps) * 1e3,
        "token_ms_p90": gaps[int(0.9 * (len(gaps) - 1))] * 1e3,
        "first_ms_p50": statistics.median(first) * 1e3,
        "first_ms_p90": first[int(0.9 * (len(first) - 1))] * 1e3,
        "graph_passes": 0 if engine.graphs is None else engine.graphs.num_replays,
    }


def prefill_seconds(decoder: Decoder, adapters: RandomAdapters, *, length: int, repeats: int) -> float:
    """Return the median seconds of a pass over one prompt of the base model."""
    times = []
    for turn in range(repeats + 2):
        engine = engine_for(decoder, adapters, batch=1, length=length + 2)
        engine.submit(request(turn, prompt=length, new=1, adapter=None, vocab_size=decoder.config.vocab_size))
        finish(decoder.device)
        before = time.perf_counter()
        while engine.has_work:
            engine.step()
        finish(decoder.device)
        times.append(time.perf_counter() - before)
        del engine
    return statistics.median(times[2:])


def peft_tokens_per_second(shape: str, *, num_layers: int | None, batch: int, prompt: int, new: int) -> float:
    """Return the decoding rate of transformers with as many PEFT adapters as rows, by ``adapter_names``."""
    import peft
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.LlamaConfig(**hf_config(shape, num_layers=num_layers))
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            base = transformers.LlamaForCausalLM(config)
            own = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", init_lora_weights=False)
            model = peft.get_peft_model(base, own, adapter_name="a0")
            for index in range(1, batch):
                model.add_adapter(f"a{index}", own)
    finally:
        torch.set_default_dtype(torch.float32)
    model.eval()
    ids = torch.randint(0, config.vocab_size, (batch, prompt), device=device)
    names = [f"a{index}" for index in range(batch)]

    def seconds(count: int) -> float:
        finish(torch.device(device))
        before = time.perf_counter()
        with torch.no_grad():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                adapter_names=names,
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        finish(torch.device(device))
        return time.perf_counter() - before

    seconds(2)
    # the prompt's pass and what generate sets up are in both
    return batch * (new - 2) / (seconds(new) - seconds(2))


class Record:
    """What was measured so far; the file is written again with each row, so that a stopped script leaves some."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = arguments.out or RESULTS / f"serving_{arguments.shape}.json"
        self._notes = {"r": RANK, "prompt": arguments.prompt, "new": arguments.new}
        self.headline: dict[str, float] = {}
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(row)
        self.write()
        print(
            ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            ),
            flush=True,
        )
        return row

    def write(self) -> None:
        write_result(
            self._path,
            question="What do adapters cost when they are served, and what do transformers and PEFT take for the same?",
            headline=self.headline,
            rows=self.rows,
            notes=self._notes,
        )


def measure(arguments: argparse.Namespace) -> Record:
    """Measure what was asked for, the headline's numbers first."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, prompt, new = arguments.shape, arguments.prompt, arguments.new
    config = decoder_config(shape, num_layers=arguments.num_layers)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    record = Record(arguments)
    floor = read_floor = mfu_ceiling = None
    if device == "cuda":
        copies, mfu_ceiling = copy_ceiling(), matrix_ceiling()
        torch.cuda.empty_cache()
    decoder = random_decoder(config, device=device, dtype=dtype)
    if device == "cuda":
        floor = decoder.num_bytes / (copies * 1e12)
        # a pass reads one row of the token table
        read_floor = sum(product.num_bytes for product in decoder.products) / (copies * 1e12)
    most, batch = max(arguments.adapters), arguments.batch
    adapters = RandomAdapters(decoder, count=most, r=RANK)
    one = record.add(closed_loop(decoder, adapters, batch=1, count=0, prompt=prompt, new=new))
    if floor is not None and read_floor is not None:
        record.headline[f"decode_over_floor_{shape}"] = one["token_ms_p50"] / 1e3 / floor
        record.headline[f"decode_over_floor_of_what_is_read_{shape}"] = one["token_ms_p50"] / 1e3 / read_floor
    base = record.add(closed_loop(decoder, adapters, batch=batch, count=0, prompt=prompt, new=new))
    mixed: dict[str, Any] | None = None
    # the headline's first
    for count in sorted(arguments.adapters, key=lambda count: count != batch):
        size = max(batch, min(count, 256))
        row = record.add(closed_loop(decoder, adapters, batch=size, count=count, prompt=prompt, new=new))
        if mixed is None:
            mixed = row
            record.headline["decode_tokens_per_second"] = row["tokens_per_second"]
        if size == batch:
            record.headline[f"serving_adapter_tax_{count}"] = base["tokens_per_second"] / row["tokens_per_second"]
    assert mixed is not None, "the parser asks for a number of adapters"
    length = min(2048, config.max_position_embeddings - 2)
    seconds = prefill_seconds(decoder, adapters, length=length, repeats=3)
    record.add({"loop": "prefill", "batch": 1, "adapters": 0, "tokens_per_second": length / seconds})
    if mfu_ceiling is not None:
        rate = 2 * num_parameters(config) * length / seconds / 1e12
        record.headline |= {"prefill_mfu_of_measured_ceiling": rate / mfu_ceiling, "prefill_tflops": rate}
    for rate in arguments.rates:
        for count in (0, min(batch, most)):
            sizes = {"requests": arguments.requests, "prompt": prompt, "new": new}
            record.add(open_loop(decoder, adapters, rate=rate, count=count, **sizes))
    del decoder, adapters
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    if not arguments.no_peft:
        peft = peft_tokens_per_second(
            shape, num_layers=arguments.num_layers, batch=batch, prompt=prompt, new=arguments.peft_new
        )
        record.headline = {f"serving_vs_peft_{batch}": mixed["tokens_per_second"] / peft, **record.headline}
        record.add({"loop": "peft, adapter_names", "batch": batch, "adapters": batch, "tokens_per_second": peft})
    record.write()
    return record


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    found.add_argument("--num-layers", type=int, default=None)
    found.add_argument("--batch", type=int, default=32, help="requests at once, and adapters of the headline")
    found.add_argument("--adapters", type=int, nargs="+", default=[1, 8, 32, 64])
    found.add_argument("--prompt", type=int, default=128)
    found.add_argument("--new", type=int, default=96)
    found.add_argument("--rates", type=float, nargs="*", default=[4.0, 16.0], help="requests a second, open loop")
    found.add_argument("--requests", type=int, default=32, help="of an open loop")
    found.add_argument("--peft-new", type=int, default=18)
    found.add_argument("--no-peft", action="store_true")
    found.add_argument("--out", type=Path, default=None)
    return found


def main() -> None:
    """Measure, print, write."""
    arguments = parser().parse_args()
    need_gpu(shape=arguments.shape)
    record = measure(arguments)
    print_table(record.rows, columns=list(record.rows[0]))
    for name, value in record.headline.items():
        print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main()
