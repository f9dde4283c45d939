"""What a streamed token and a request cost the process that computes, on a CPU: everything but the model.

The engine and the server are the ones of ``cohort serve``; passes compute nothing and take as long as a GPU's. Runs of
two lengths tell requests from tokens. Each way of writing is measured in turns, since the machine may be busy, and its
first turn is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.serving.http_streams import alone, open_engine, over_http, word_tokenizer
from cohort.core.process.lasting_objects import lasting_objects_uncollected
from cohort.serving.engine import ServingEngine
from cohort.serving.pass_record import record_of
from cohort.serving.runner import NextToken
from cohort.serving.scheduler import StepPlan

QUESTION = "What do a streamed token and a request cost the process that computes?"
WAYS = ("alone", "here", "apart")
SHORT, LONG = 16, 272


class EmptyPasses:
    """Gives each sequence a token; a pass takes ``seconds``, as a GPU's does while Python does other things."""

    def __init__(self, vocab_size: int, seconds: float) -> None:
        self._vocab_size, self._seconds = vocab_size, seconds

    def run(self, plan: StepPlan, *, meanwhile: Callable[[], None] | None = None) -> list[NextToken]:
        """Stand for :meth:`cohort.serving.runner.PassRunner.run`."""
        end = time.perf_counter() + self._seconds
        _, sampled = record_of(plan)
        if meanwhile is not None:
            meanwhile()
        if (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        return [
            NextToken(sequence=each, token=(each.number * 7919 + each.num_generated * 31) % self._vocab_size)
            for each in sampled
        ]


def measured(engine: ServingEngine, pool: Any, tokenizer: Any, way: str, **sizes: int) -> dict[str, float]:
    # as a server does
    with lasting_objects_uncollected():
        if way == "alone":
            return alone(engine, **sizes)
        return over_http(engine, pool, tokenizer, writes_apart=way == "apart", **sizes)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens-per-second", type=float, default=13_600.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = decoder_config("tiny")
    tokenizer = word_tokenizer(config.vocab_size)
    clients, prompt = options.clients, options.prompt
    decoder = random_decoder(config, device="cpu", dtype=torch.float32)
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for turn in range(options.rounds + 1):
        for way in WAYS:
            for new in (SHORT, LONG):
                # a server closes its pool at its end
                engine, pool = open_engine(decoder, tokenizer, batch=clients, length=prompt + LONG + 1)
                passes: Any = EmptyPasses(config.vocab_size, clients / options.tokens_per_second)
                engine._runner = passes
                sizes = {"clients": clients, "prompt": prompt, "new": new, "vocab_size": config.vocab_size}
                run = measured(engine, pool, tokenizer, way, **sizes)
                if turn:
                    found.setdefault((way, new), []).append(run)
    rows = [row_of(way, found, clients=clients) for way in WAYS]
    by_way = {row["way"]: row for row in rows}
    headline = {
        f"stream_{way}_us_per_token": by_way[way]["us_per_token"] - by_way["alone"]["us_per_token"]
        for way in ("here", "apart")
    }
    print_table(rows, columns=list(rows[0]))
    print(headline)
    write_result(
        options.out or RESULTS / "stream_cost.json",
        question=QUESTION,
        headline=headline,
        rows=rows,
        notes={
            "clients": clients,
            "prompt": prompt,
            "new": [SHORT, LONG],
            "tokens_per_second_of_passes": options.tokens_per_second,
            "rounds": options.rounds,
        },
    )


def row_of(way: str, found: dict[tuple[str, int], list[dict[str, float]]], *, clients: int) -> dict[str, Any]:
    """Return CPU microseconds of this process, and what clients saw of the longer answers."""
    short, long = (statistics.median(run["cpu_seconds"] for run in found[way, new]) for new in (SHORT, LONG))
    per_token = 1e6 * (long - short) / (clients * (LONG - SHORT))
    runs = found[way, LONG]
    return {
        "way": way,
        "us_per_token": per_token,
        "us_per_request": 1e6 * short / clients - SHORT * per_token,
        "tokens_per_second_of_a_core": 1e6 / per_token,
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        "first_ms_p50": statistics.median(run["first_ms_p50"] for run in runs),
        "first_ms_p99": statistics.median(run["first_ms_p99"] for run in runs),
    }


if __name__ == "__main__":
    main()
