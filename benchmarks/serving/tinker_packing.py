"""32 Tinker clients at once against one at a time, and what a call costs beyond its pass, on the quickstart's model.

The server is that of ``cohort serve MODEL --tinker``, with passes on one thread; clients are connections of another
process. One and many take turns, and the best round of each counts. The gain is of rows a second of the server's CPU
time, HTTP included, which neither the clients nor what else the machine does lengthens; rates by the clock are printed
next to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.serving.tinker_clients import WARM_STEPS
from cohort.models.tokenizer import load_tokenizer
from cohort.service.settings import ServedSettings
from tests.service.running_server import running

QUESTION = "How many more rows a second do 32 Tinker clients train at once than one alone, and what does a call cost?"
QUICKSTART = REPOSITORY / "examples" / "quickstart"
ROWS = (1, 4, 16)
RANK = 8


def timed(work: Callable[..., Any], seconds: list[tuple[float, float]]) -> Callable[..., Any]:
    """Return ``work`` that notes how long each call took, by the clock and in CPU time."""

    def run(*arguments: Any) -> Any:
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            return work(*arguments)
        finally:
            seconds.append((time.perf_counter() - begun, time.thread_time() - cpu))

    return run


class Clients:
    """The process of the clients, and the server in this one."""

    def __init__(self, url: str, tokens: Sequence[Sequence[int]]) -> None:
        self._tokens = tokens
        command = [sys.executable, "-m", "benchmarks.serving.tinker_clients", url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=REPOSITORY, **pipes)

    def ask(self, *, clients: int, rows: int, steps: int, apart: bool = False) -> dict[str, Any]:
        """Return what clients measured, with the CPU seconds of this process, where passes and answers are made."""
        own = [self._tokens[place * rows : (place + 1) * rows] for place in range(clients)]
        asked = {"rows": own, "rank": RANK, "steps": steps, "apart": apart}
        begun = time.process_time()
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        found = json.loads(self._process.stdout.readline())
        # the warm steps are a known share of all
        found["cpu"] = (time.process_time() - begun) * steps / (steps + WARM_STEPS)
        return found

    def close(self) -> None:
        self._process.communicate()


Seconds = dict[str, list[tuple[float, float]]]


def overheads(clients: Clients, seconds: Seconds, *, steps: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a pass and a step, and what their calls took beyond them, of the best round."""
    found = [_overheads(clients, seconds, steps=steps) for _ in range(rounds)]
    print_table(found, columns=list(found[0]))
    return min(found, key=lambda each: each["passes_beyond_ms"] + each["steps_beyond_ms"])


def _overheads(clients: Clients, seconds: Seconds, *, steps: int) -> dict[str, float]:
    found = clients.ask(clients=1, rows=4, steps=steps, apart=True)
    within = sum(cpu for own in seconds.values() for _, cpu in own[-steps:])
    result = {"server_beyond_cpu_ms": 1e3 * (found["cpu"] - within) / (2 * steps)}
    for name, calls in (("passes", found["passes"]), ("steps", found["steps"])):
        inside = [clock for clock, _ in seconds[name][-steps:]]
        beyond = [call - own for call, own in zip(calls, inside, strict=True)]
        result[f"{name}_ms"] = 1e3 * statistics.median(inside)
        result[f"{name}_beyond_ms"] = 1e3 * statistics.median(beyond)
    return result


def gain(clients: Clients, *, rows: int, num_clients: int, rounds: int) -> dict[str, float]:
    """Return the rows of one client and of many, by the second of the server's CPU time and by the clock."""
    steps = {1: 16, num_clients: 4}
    rates: dict[int, list[float]] = {1: [], num_clients: []}
    cpu_rates: dict[int, list[float]] = {1: [], num_clients: []}
    for _ in range(rounds):
        for count, num_steps in steps.items():
            found = clients.ask(clients=count, rows=rows, steps=num_steps)
            rates[count].append(count * num_steps * rows / found["seconds"])
            cpu_rates[count].append(count * num_steps * rows / found["cpu"])
    return {
        "rows_of_a_step": rows,
        "one_rows_per_cpu_second": max(cpu_rates[1]),
        "many_rows_per_cpu_second": max(cpu_rates[num_clients]),
        "gain": max(cpu_rates[num_clients]) / max(cpu_rates[1]),
        "one_rows_per_second": max(rates[1]),
        "many_rows_per_second": max(rates[num_clients]),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=30, help="calls of each kind in a round of the overhead")
    parser.add_argument("--out", type=Path, default=RESULTS / "tinker_packing.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    model = QUICKSTART / "base_model"
    tokenizer = load_tokenizer(str(model))
    lines = [json.loads(line) for line in (QUICKSTART / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    tokens = [tokenizer(line["prompt"] + line["completion"])["input_ids"] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        served = ServedSettings(
            model=str(model), names=("base",), gpus=0, tinker=Path(folder), max_trained_models=options.clients
        )
        with running(served) as server:
            executor = server.opened.tinker.trainer.executor
            seconds: Seconds = {"passes": [], "steps": []}
            executor.run = timed(executor.run, seconds["passes"])
            executor.step = timed(executor.step, seconds["steps"])
            clients = Clients(server.url, tokens)
            beyond = overheads(clients, seconds, steps=options.calls, rounds=2 * options.rounds)
            rows = [gain(clients, rows=each, num_clients=options.clients, rounds=options.rounds) for each in ROWS]
            clients.close()
    print_table(rows, columns=list(rows[0]))
    by_rows = {row["rows_of_a_step"]: row for row in rows}
    headline = {
        "tinker_packed_gain_cpu": by_rows[4]["gain"],
        "tinker_packed_gain_cpu_1_row": by_rows[1]["gain"],
        "tinker_packed_gain_cpu_16_rows": by_rows[16]["gain"],
        "tinker_call_beyond_pass_ms": max(beyond["passes_beyond_ms"], beyond["steps_beyond_ms"]),
        "tinker_call_beyond_pass_server_cpu_ms": beyond["server_beyond_cpu_ms"],
    }
    print(headline)
    # of all processors: beyond their number, programs wait for one another
    loads = {"load_before": load_before, "load_after": os.getloadavg()[0]}
    notes = {
        **beyond,
        **loads,
        "clients": options.clients,
        "rank": RANK,
        "mean_tokens": statistics.mean(map(len, tokens)),
    }
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes=notes)


if __name__ == "__main__":
    main()
