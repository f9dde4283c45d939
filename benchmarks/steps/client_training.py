"""Clients that drive their own training: 32 at once against one after the other, and against a loop with PEFT.

Each client sends a forward_backward of one datum and an optim_step, waits for both and goes on, as Tinker's does.
Everything of a server but HTTP takes part: the thread that owns the models, its rounds, the shared passes.
"""

from __future__ import annotations

import argparse
import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import median_seconds, peft_step
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.models.decoder import Decoder
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.datum import Datum, TokenLoss, checked_datum, checked_loss
from cohort.training.client_training.request_executor import AdamParameters, PassRequest, RequestExecutor

QUESTION = "How much faster do 32 clients train at once than one after the other, and than PEFT does one?"
RANK = 16
TOKEN_BUDGET = 8192
# what a step of PEFT's at batch 1 takes on the fastest host that it was measured on, s
FAST_HOST = {"8b": 0.157, "1b": 0.096}


def loss() -> TokenLoss:
    return checked_loss("cross_entropy", {}, known=TOKEN_OBJECTIVES)


def datum_of(tokens: int, *, vocab_size: int, seed: int) -> Datum:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, vocab_size, size=tokens + 1)
    inputs: dict[str, Any] = {"target_tokens": drawn[1:], "weights": np.ones(tokens)}
    return checked_datum(drawn[:-1], inputs, loss=loss(), place=0, vocab_size=vocab_size, context=tokens)


def opened(decoder: Decoder, *, clients: int) -> RequestExecutor:
    """Return an executor with a model for each client, as a server has them."""
    executor = RequestExecutor(
        decoder,
        layout=AdapterLayout(decoder.linears),
        num_slots=clients,
        num_rank_rows=RANK * clients,
        token_budget=TOKEN_BUDGET,
        compute_dtype=decoder.dtype,
    )
    for client in range(clients):
        executor.models.create(f"m{client}", AdapterSpec(r=RANK, lora_alpha=2.0 * RANK), seed=client, state=None)
    return executor


def round_seconds(executor: RequestExecutor, *, clients: int, tokens: int, steps: int) -> float:
    """Return the seconds in which every client takes one step, calling through the trainer's thread."""
    trainer = ClientTrainer(executor)
    trainer.start()
    vocab_size = executor.decoder.config.vocab_size
    data = [datum_of(tokens, vocab_size=vocab_size, seed=client) for client in range(clients)]
    for client in range(clients):
        trainer.open(f"m{client}")
    begin = threading.Barrier(clients + 1)

    def run(client: int) -> None:
        name, number = f"m{client}", 0
        for step in range(2 + steps):
            if step == 2:
                begin.wait()
            request = PassRequest(model_id=name, data=(data[client],), loss=loss(), trains=True)
            answers = []
            for work in (request, AdamParameters(learning_rate=1e-4)):
                number += 1
                answers.append(trainer.submit(name, number=number, fingerprint=b"%d" % number, work=work))
            for answer in answers:
                answer.result()

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    begin.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = (time.perf_counter() - begun) / steps
    trainer.close()
    return seconds


def direct_seconds(executor: RequestExecutor, *, clients: int, tokens: int, repeats: int) -> float:
    """Return the seconds of the same round without the trainer's thread: one call of the executor for all."""
    vocab_size = executor.decoder.config.vocab_size
    requests = [
        PassRequest(
            model_id=f"m{client}",
            data=(datum_of(tokens, vocab_size=vocab_size, seed=client),),
            loss=loss(),
            trains=True,
        )
        for client in range(clients)
    ]
    steps = [(f"m{client}", AdamParameters(learning_rate=1e-4)) for client in range(clients)]

    def work() -> None:
        executor.run(requests)
        executor.step(steps)

    return median_seconds(work, repeats=repeats, warmups=1)


def freed() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure, print, write after every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device=device, dtype=dtype)
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}

    def write() -> None:
        write_result(
            options.out or RESULTS / f"client_training_{options.shape}.json",
            question=QUESTION,
            headline=headline,
            rows=rows,
            notes={
                "r": RANK,
                "clients": options.clients,
                "token_budget": TOKEN_BUDGET,
                "num_layers": config.num_layers,
            },
        )

    for tokens in options.tokens:
        executor = opened(decoder, clients=options.clients)
        together = round_seconds(executor, clients=options.clients, tokens=tokens, steps=options.steps)
        direct = direct_seconds(executor, clients=options.clients, tokens=tokens, repeats=options.steps)
        del executor
        freed()
        # one client has the server for itself, then the next: no client waits for company
        alone = round_seconds(opened(decoder, clients=1), clients=1, tokens=tokens, steps=2 * options.steps)
        freed()
        headline[f"tinker_packed_gain_{options.shape}_{tokens}"] = options.clients * alone / together
        headline[f"tinker_operation_overhead_ms_{tokens}"] = 1e3 * (together - direct) / (2 * options.clients)
        rows.append(
            {
                "tokens": tokens,
                "round_ms": 1e3 * together,
                "round_without_the_thread_ms": 1e3 * direct,
                "alone_ms": 1e3 * alone,
                "tokens_per_second": options.clients * tokens / together,
            }
        )
        print(rows[-1], flush=True)
        write()
    del decoder
    freed()
    for tokens, row in zip(options.tokens, rows, strict=True):
        samples = rows_of_lengths([(1, tokens - 1)] * 16, vocab_size=config.vocab_size)
        step, model = peft_step(options.shape, samples, batch_size=1, device=device, num_layers=options.num_layers)
        row["peft_ms"] = 1e3 * median_seconds(step, repeats=5, warmups=3)
        each = row["round_ms"] / options.clients
        headline[f"tinker_vs_peft_loop_{options.shape}_{tokens}"] = row["peft_ms"] / each
        if options.shape in FAST_HOST and tokens == min(options.tokens):
            headline[f"tinker_vs_peft_loop_{options.shape}_{tokens}_fast_host"] = 1e3 * FAST_HOST[options.shape] / each
        write()
        del step, model
        freed()
    print_table(rows, columns=list(rows[0]))
    print(headline)


if __name__ == "__main__":
    main()
