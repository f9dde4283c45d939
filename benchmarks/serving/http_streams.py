"""256 clients that stream answers over HTTP, against the engine alone with the same requests.

The server is the one of ``cohort serve``, with a model of true shapes and random weights and a tokenizer of one word a
token; clients are connections of other processes that read tokens as they come. As on a GPU, a process of their own
writes the streams; ``--writes here`` has the engine's process write them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import uvicorn

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder
from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.serving.serving import finish, request
from cohort.core.process.lasting_objects import lasting_objects_uncollected
from cohort.models.decoder import Decoder
from cohort.service.engine_thread import EngineThread
from cohort.service.listening import listen
from cohort.service.metrics import ServerMetrics
from cohort.service.serve_app import build_app
from cohort.service.served_base import ServedBase
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServerSettings
from cohort.service.streams.lent_connection import LendingProtocol
from cohort.service.streams.stream_writer import StreamWriter
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.engine import ServingEngine
from cohort.serving.kv_blocks import blocks_for
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.text.text_decoder import text_decoder

QUESTION = "How much of the engine's rate is left over HTTP, and when does a stream's first token come?"
PROCESSES = 4


def word_tokenizer(vocab_size: int) -> Any:
    """Return a tokenizer with one word a token."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(vocab_size)}, unk_token="w0"))
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0")


def open_engine(decoder: Decoder, tokenizer: Any, *, batch: int, length: int) -> tuple[ServingEngine, AdapterPool]:
    pool = AdapterPool(
        decoder, settings=AdapterPoolSettings(), reserved_names=("base",), check=ServedBase(Path()).check
    )
    engine = ServingEngine(
        decoder,
        adapters=pool,
        num_blocks=batch * (blocks_for(length) + 1),
        settings=SchedulerSettings(max_num_seqs=batch, max_num_batched_tokens=max(8192, batch), finds_prefixes=False),
        decode_text=text_decoder(tokenizer),
        max_model_len=length,
        records_graphs=True,
    )
    return engine, pool


def alone(engine: ServingEngine, *, clients: int, prompt: int, new: int, vocab_size: int) -> dict[str, float]:
    """Return tokens a second of the engine with all requests at once, from the first pass to the last."""
    for _ in range(2):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for index in range(clients):
            engine.submit(request(index, prompt=prompt, new=new, adapter=None, vocab_size=vocab_size))
        seen: set[int] = set()
        first: list[float] = []
        while engine.has_work:
            # texts are made while the next pass is computed, as a server does
            outputs = engine.step(meanwhile=engine.add_texts, adds_texts=False)
            fresh = {output.number for output in outputs} - seen
            first += [time.perf_counter() - begun] * len(fresh)
            seen |= fresh
        finish(engine.device)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    return {
        "tokens_per_second": clients * new / seconds,
        "cpu_seconds": cpu_seconds,
        "first_ms_p50": 1e3 * statistics.median(first),
        "first_ms_p99": 1e3 * sorted(first)[int(0.99 * (len(first) - 1))],
    }


def over_http(
    engine: ServingEngine,
    pool: AdapterPool,
    tokenizer: Any,
    *,
    clients: int,
    prompt: int,
    new: int,
    vocab_size: int,
    writes_apart: bool,
) -> dict[str, float]:
    """Return the same seen by the clients of a server around ``engine``; CPU seconds are those of this process."""
    with tempfile.TemporaryDirectory() as folder:
        model = ServedModel(
            names=("base",),
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            stop_ids=frozenset(),
            engine=engine,
            pool=pool,
            max_prompts=1,
            base=ServedBase(Path(folder)),
        )
        writer = StreamWriter(tokenizer) if writes_apart else None
        thread = EngineThread(engine, pool, max_waiting=2 * clients, writer=writer)
        app = build_app(model, thread, settings=ServerSettings(), metrics=ServerMetrics("base"))
        config = uvicorn.Config(app, http=LendingProtocol, log_level="warning", access_log=False, lifespan="off")
        server, listener = uvicorn.Server(config), listen("127.0.0.1", 0)
        thread.start()
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        try:
            port, cpu_begun = listener.getsockname()[1], time.process_time()
            found = _measured(port, clients=clients, prompt=prompt, new=new, vocab_size=vocab_size)
            found["cpu_seconds"] = time.process_time() - cpu_begun
        finally:
            server.should_exit = True
            serving.join()
            thread.close(drain_seconds=1.0)
    return found


def _measured(port: int, *, clients: int, prompt: int, new: int, vocab_size: int) -> dict[str, float]:
    # processes start first
    asked = {"port": port, "prompt": prompt, "new": new, "vocab_size": vocab_size, "begin": time.time() + 4.0}
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.serving.stream_clients",
                json.dumps({**asked, "places": list(range(start, clients, PROCESSES))}),
            ],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        for start in range(min(PROCESSES, clients))
    ]
    streams = [stream for process in processes for stream in json.loads(process.communicate(timeout=120)[0])]
    first = sorted(first for first, _, _ in streams)
    return {
        "tokens_per_second": clients * new / max(end for _, end, _ in streams),
        "first_ms_p50": 1e3 * statistics.median(first),
        "first_ms_p99": 1e3 * first[int(0.99 * (len(first) - 1))],
        "pieces": sum(count for _, _, count in streams),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--writes", choices=("apart", "here"), default="apart")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    tokenizer = word_tokenizer(config.vocab_size)
    engine, pool = open_engine(decoder, tokenizer, batch=options.clients, length=options.prompt + options.new + 1)
    sizes = {"prompt": options.prompt, "new": options.new, "vocab_size": config.vocab_size}
    apart = options.writes == "apart"
    # as a server does
    with lasting_objects_uncollected():
        own = alone(engine, clients=options.clients, **sizes)
        served = over_http(engine, pool, tokenizer, clients=options.clients, writes_apart=apart, **sizes)
    rows = [{"way": "the engine", **own}, {"way": "HTTP, streamed", **served}]
    headline = {
        "http_over_engine": served["tokens_per_second"] / own["tokens_per_second"],
        "http_first_token_ms_p99": served["first_ms_p99"],
    }
    print_table(rows, columns=list(rows[1]))
    print(headline)
    write_result(
        options.out or RESULTS / f"http_streams_{options.shape}.json",
        question=QUESTION,
        headline=headline,
        rows=rows,
        notes={
            **sizes,
            "clients": options.clients,
            "shape": options.shape,
            "num_layers": config.num_layers,
            "writes": options.writes,
        },
    )


if __name__ == "__main__":
    main()
