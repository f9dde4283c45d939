"""Shares of four tenants with many small sweeps on two workers of one CPU core each, against their weights.

Each worker is a process with one base model in memory, and has half of each tenant's jobs, whose numbers are as the
weights, so that all tenants have work for about as long. What counts are the seconds that a worker's passes took,
divided among the tenants in each pass by their tokens, while every tenant has a trial that could step: the share of one
that has none is lent. A worker stops when a tenant's last job has ended. A request comes now and then.

    python -m benchmarks.service.tenant_shares    # CPU, two free cores, half an hour
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.engine.resident.resident_base import ResidentBase
from cohort.engine.resident.sweeps import SweepOrder, Sweeps
from cohort.engine.session_task import TaskEnd
from cohort.engine.turns.base_turns import BaseTurns, HeldTurn
from cohort.machine.machine import choose_machine
from cohort.memory.budget import Sizes
from cohort.models.weights import load_decoder
from cohort.scheduling.admission import Capacity
from cohort.scheduling.shares.records import WorkKind
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.engine import ServingEngine
from cohort.serving.sequence import SequenceRequest
from cohort.tasks.loading import TaskFile, task_from_mapping
from cohort.training.executor_settings import ExecutorSettings

QUESTION = "How close to their weights are the shares of four tenants with many small sweeps on two CPU workers?"
QUICKSTART = REPOSITORY / "examples" / "quickstart"
WEIGHTS = {"ants": 4.0, "bees": 3.0, "cats": 2.0, "dogs": 1.0}
NUM_SLOTS, SEATS = 32, 32


def job(number: int, tenant: str, *, steps: int) -> TaskFile:
    """Return a small sweep; those of tenants differ in batch sizes, ranks and numbers of steps."""
    place = list(WEIGHTS).index(tenant)
    return task_from_mapping(
        {
            "model_name_or_path": "base_model",
            "dataset": {"train": "train.jsonl", "validation": "validation.jsonl", "max_length": 64},
            "lora": {"target_modules": "all-linear", "lora_alpha": "2r"},
            "training": {"max_steps": steps + steps * place // 6, "batch_size": (2, 4, 8, 4)[place], "seed": number},
            "evaluation": {"max_examples": 16},
            "search": {"space": {"learning_rate": [1e-3, 3e-3], "r": [(4, 8, 16, 4)[place]]}},
            "early_exit": "none",
            "num_gpus": 0,
        },
        base_directory=QUICKSTART,
    )


class SharesWhileAllWant(BaseTurns):
    """Turns that keep what each tenant was charged while every tenant had a trial that could step.

    A tenant whose jobs are all being read or finished wants nothing: its share is lent, and not asked back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.charged: dict[str, float] = dict.fromkeys(WEIGHTS, 0.0)
        self.num_steps = self.num_steps_of_all = 0
        self._do_all_want = False

    def _charge(self, claim: Any, held: HeldTurn, *, now: float) -> None:
        tokens = held.turn.work.tokens
        if held.turn.work.kind is WorkKind.SWEEP and any(tokens.values()):
            # a step names all who could take it
            self._do_all_want = set(tokens) == set(WEIGHTS)
            self.num_steps += 1
            self.num_steps_of_all += self._do_all_want
        before = self.usage()
        super()._charge(claim, held, now=now)
        for (tenant, kind), seconds in self.usage().items() if self._do_all_want else ():
            if tenant in WEIGHTS:
                self.charged[tenant] += seconds - before.get((tenant, kind), 0.0)


def base_of() -> ResidentBase:
    decoder = load_decoder(QUICKSTART / "base_model", dtype="float32", device=torch.device("cpu"))
    rows = 16 * NUM_SLOTS
    return ResidentBase(
        decoder=decoder,
        directory=QUICKSTART / "base_model",
        machine=choose_machine(0, where="benchmark"),
        sizes=Sizes(
            executor=ExecutorSettings(
                num_slots=NUM_SLOTS, num_rank_rows=rows, token_budget=2048, evaluation_token_budget=2048
            ),
            capacity=Capacity(rank_rows=rows, num_slots=NUM_SLOTS, tokens_per_step=1e6),
        ),
        turns=SharesWhileAllWant(),
    )


def serve_now_and_then(base: ResidentBase, stop: threading.Event, waits: list[float]) -> None:
    """Ask for 16 tokens every half second; note how long each pass had to wait for its turn."""
    pool = AdapterPool(base.decoder)
    engine = ServingEngine(base.decoder, adapters=pool, num_blocks=64)
    while not stop.wait(0.5):
        engine.submit(SequenceRequest(prompt_tokens=[5, 6, 7, 8], max_new_tokens=16, tenant="requests"))
        while engine.has_work:
            asked = time.perf_counter()
            with base.turns.turn(WorkKind.SERVING, engine.ready_tokens()):
                waits.append(time.perf_counter() - asked)
                engine.step()
    pool.close()


def numbers_of_jobs(jobs: int) -> dict[str, int]:
    """Divide a worker's jobs among the tenants by their weights."""
    return {tenant: max(1, round(jobs * weight / sum(WEIGHTS.values()))) for tenant, weight in WEIGHTS.items()}


def work(*, worker: int, jobs: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train a worker's jobs until a tenant has none left, and return what it saw."""
    torch.set_num_threads(1)
    base = base_of()
    sweeps = Sweeps(base, num_seats=SEATS)
    names = {
        f"{tenant}-{worker}-{number}": tenant
        for tenant, count in numbers_of_jobs(jobs).items()
        for number in range(count)
    }
    open_names, failures, lock, is_over = set(names), list[str](), threading.Lock(), threading.Event()

    def ended(end: TaskEnd) -> None:
        with lock:
            open_names.discard(end.name)
            if end.error is not None:
                failures.append(str(end.error))
            if {names[name] for name in open_names} != set(WEIGHTS):
                is_over.set()

    for name, tenant in names.items():
        number = int(name.rpartition("-")[2])
        sweeps.submit(
            SweepOrder(
                name=name,
                read=lambda number=number, tenant=tenant: job(number, tenant, steps=steps),  # type: ignore[misc]
                run_directory=folder / name,
                tenant=tenant,
                weight=WEIGHTS[tenant],
                on_end=ended,
            )
        )
    stop, waits = threading.Event(), list[float]()
    requests = threading.Thread(target=serve_now_and_then, args=(base, stop, waits))
    began = time.perf_counter()
    sweeps.start()
    requests.start()
    is_over.wait()
    seconds, num_ended = time.perf_counter() - began, len(names) - len(open_names)
    stop.set()
    requests.join()
    sweeps.close()
    assert not failures, failures[0]
    turns = base.turns
    assert isinstance(turns, SharesWhileAllWant)
    waits.sort()
    return {
        "charged": turns.charged,
        "jobs": len(names),
        "jobs_ended": num_ended,
        "steps": turns.num_steps,
        "steps_while_all_want": turns.num_steps_of_all,
        "seconds": seconds,
        "wait_ms_median": 1e3 * waits[len(waits) // 2],
        "wait_ms_99": 1e3 * waits[int(0.99 * len(waits))],
        "wait_ms_most": 1e3 * waits[-1],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="of each trial of the first tenant; others have more")
    parser.add_argument("--worker", type=int, help="be this worker")
    parser.add_argument("--folder", type=Path, help="of a worker's runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "tenant_shares.json")
    options = parser.parse_args()
    own = options.jobs // options.workers
    if options.worker is not None:
        print(json.dumps(work(worker=options.worker, jobs=own, steps=options.steps, folder=options.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.service.tenant_shares", "--jobs", str(options.jobs)]
        command += ["--workers", str(options.workers), "--steps", str(options.steps), "--folder", folder, "--worker"]
        workers = [
            subprocess.Popen([*command, str(worker)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
            for worker in range(options.workers)
        ]
        found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in workers]
    total_weight, rows = sum(WEIGHTS.values()), []
    total = sum(sum(each["charged"].values()) for each in found)
    for tenant, weight in WEIGHTS.items():
        share, due = sum(each["charged"][tenant] for each in found) / total, weight / total_weight
        rows.append({"tenant": tenant, "weight": weight, "share": share, "due": due, "error": share / due - 1})
    print_table(rows, columns=list(rows[0]))
    print_table(found, columns=[name for name in found[0] if name != "charged"])
    headline = {
        "largest_error_of_a_share": max(abs(row["error"]) for row in rows),
        "seconds_while_all_want": total,
        "jobs": sum(each["jobs"] for each in found),
        "jobs_ended": sum(each["jobs_ended"] for each in found),
        "request_pass_wait_ms_median": max(each["wait_ms_median"] for each in found),
        "request_pass_wait_ms_99": max(each["wait_ms_99"] for each in found),
        # others that use the cores make passes longer, not shares different
        "load_average": round(os.getloadavg()[0], 1),
    }
    write_result(options.out, question=QUESTION, headline=headline, rows=[*rows, *found])


if __name__ == "__main__":
    main()
