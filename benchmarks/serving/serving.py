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


def measure(arguments: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return headline and rows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, prompt, new = arguments.shape, arguments.prompt, arguments.new
    config = decoder_config(shape, num_layers=arguments.num_layers)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    most = max(arguments.adapters)
    adapters = RandomAdapters(decoder, count=most, r=RANK)
    rows = [closed_loop(decoder, adapters, batch=1, count=0, prompt=prompt, new=new)]
    batch = arguments.batch
    for count in (0, *arguments.adapters):
        rows.append(
            closed_loop(decoder, adapters, batch=max(batch, min(count, 256)), count=count, prompt=prompt, new=new)
        )
    for rate in arguments.rates:
        for count in (0, min(batch, most)):
            rows.append(
                open_loop(
                    decoder, adapters, rate=rate, count=count, requests=arguments.requests, prompt=prompt, new=new
                )
            )
    base = next(row for row in rows[1:] if row["adapters"] == 0)
    mixed = next((row for row in rows if row["adapters"] == batch and row["loop"] == "closed"), rows[2])
    headline = {
        f"serving_adapter_tax_{batch}": base["tokens_per_second"] / mixed["tokens_per_second"],
        "decode_tokens_per_second": mixed["tokens_per_second"],
    }
    length = min(2048, config.max_position_embeddings - 2)
    seconds = prefill_seconds(decoder, adapters, length=length, repeats=3)
    rate = 2 * num_parameters(config) * length / seconds / 1e12
    rows.append({"loop": "prefill", "batch": 1, "adapters": 0, "tokens_per_second": length / seconds})
    weight_bytes = decoder.num_bytes
    del decoder, adapters
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        floor = weight_bytes / (copy_ceiling() * 1e12)
        headline[f"decode_over_floor_{shape}"] = rows[0]["token_ms_p50"] / 1e3 / floor
        headline["prefill_mfu_of_measured_ceiling"] = rate / matrix_ceiling()
        headline["prefill_tflops"] = rate
        torch.cuda.empty_cache()
    if not arguments.no_peft:
        peft = peft_tokens_per_second(
            shape, num_layers=arguments.num_layers, batch=batch, prompt=prompt, new=arguments.peft_new
        )
        headline[f"serving_vs_peft_{batch}"] = mixed["tokens_per_second"] / peft
        rows.append({"loop": "peft, adapter_names", "batch": batch, "adapters": batch, "tokens_per_second": peft})
    return headline, rows


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    found.add_argument("--num-layers", type=int, default=None)
    found.add_argument("--batch", type=int, default=32, help="requests at once, and adapters of the headline")
    found.add_argument("--adapters", type=int, nargs="+", default=[1, 8, 32, 64])
    found.add_argument("--prompt", type=int, default=128)
    found.add_argument("--new", type=int, default=96)
    found.add_argument("--rates", type=float, nargs="*", default=[4.0, 16.0], help="requests a second, open loop")
    found.add_argument("--requests", type=int, default=64, help="of an open loop")
    found.add_argument("--peft-new", type=int, default=18)
    found.add_argument("--no-peft", action="store_true")
    found.add_argument("--out", type=Path, default=None)
    return found


def main() -> None:
    """Measure, print, write."""
    arguments = parser().parse_args()
    need_gpu(shape=arguments.shape)
    headline, rows = measure(arguments)
    print_table(rows, columns=list(rows[0]))
    write_result(
        arguments.out or RESULTS / f"serving_{arguments.shape}.json",
        question="What do adapters cost when they are served, and what do transformers and PEFT take for the same?",
        headline=headline,
        rows=rows,
        notes={"r": RANK, "prompt": arguments.prompt, "new": arguments.new},
    )


if __name__ == "__main__":
    main()
