"""How much faster do several GPUs train a pack whose trials are divided over them?

Each GPU holds the whole model (random weights) and a process of its own. Weak scaling: 32 trials on each GPU, so every
GPU does what one alone does. Strong scaling: 32 trials in all. All ranks step together, so a step takes as long as that
of the rank with the most tokens.

Before anything is timed: the same pack on two ranks has the same losses and weights, bit for bit, and a trial that
moves to another rank goes on with the bits it had. The time that a state takes to another rank is measured as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.llama_shapes import SHAPES, gsm8k_rows, hf_config
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.several_gpus.benchmark_ranks import local_rank, other_ranks, rank_zero_decoder
from benchmarks.steps.step_timing import trial_specs
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["main", "same_bits", "specs_of", "start", "timed", "write_checkpoint", "write_model"]

QUESTION = "How much faster do several GPUs train when the trials are divided over them?"
NUM_TRIALS = 32
RANKS = (8, 16, 32, 64)


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    need_gpu(shape=options.shape)
    there = torch.cuda.device_count() if torch.cuda.is_available() else max(options.gpus)
    gpus = [count for count in options.gpus if count <= there]
    with tempfile.TemporaryDirectory(prefix="several-gpus-") as folder:
        write_model(Path(folder), shape=options.shape, num_layers=options.num_layers)
        executor, load_seconds = start(Path(folder), num_ranks=max(gpus), options=options)
        try:
            headline, rows, notes = _measure(executor, gpus, options=options)
        finally:
            executor.close()
    notes |= {
        "load_seconds": load_seconds,
        "batch_size": options.batch_size,
        "not_measured": sorted({1, 2, 4, 8} - {*gpus}),
    }
    print_table(rows, columns=("gpus", "scaling", "trials", "step_ms", "tokens_per_second"))
    print({key: round(value, 3) for key, value in headline.items()})
    out = options.out or RESULTS / f"several_gpus_{options.shape}.json"
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4], help="numbers of GPUs")
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--batch-size", type=int, default=2, help="rows of a trial's step, of GSM8K's lengths")
    parser.add_argument("--steps", type=int, default=12, help="steps to time")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def write_model(folder: Path, *, shape: str, num_layers: int | None) -> None:
    """Write a checkpoint of a shape, with fewer layers if asked, for processes to load."""
    write_checkpoint(folder, hf_config(shape, num_layers=num_layers))


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Write random weights for ``config``, a file for each layer; the index, which names the files, comes last."""
    from transformers import LlamaConfig, LlamaForCausalLM

    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device("meta"):
        names = {
            name: tuple(value.shape) for name, value in LlamaForCausalLM(LlamaConfig(**config)).state_dict().items()
        }
    if config["tie_word_embeddings"]:
        names.pop("lm_head.weight", None)
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(f"model-{name.split('.')[2] if '.layers.' in name else 'rest'}.safetensors", []).append(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def write(file: str) -> None:
        tensors = {}
        for name in files[file]:
            tensor = torch.empty(names[name], device=device, dtype=torch.bfloat16)
            tensors[name] = (tensor.fill_(1.0) if tensor.ndim == 1 else tensor.normal_(std=0.02)).cpu()
        save_file(tensors, folder / file, metadata={"format": "pt"})

    # a thread waits for its copies and for the disk
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, files))
    index = {"metadata": {}, "weight_map": {name: file for file, own in files.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def start(
    folder: Path,
    *,
    num_ranks: int,
    options: argparse.Namespace,
    weights: RankWeights = ALL_RESIDENT,
    graph_tokens: int = 0,
) -> tuple[ReplicatedExecutor, float]:
    """Start the ranks, each with the model in ``folder``; return them joined, and the seconds that took.

    Args:
        graph_tokens: Passes of fewer tokens are recorded.
    """
    began = time.perf_counter()
    rows = gsm8k_rows(512, vocab_size=hf_config(options.shape)["vocab_size"])
    specs = specs_of(options, count=options.trials)
    settings = ExecutorSettings(
        num_slots=options.trials,
        num_rank_rows=sum(-(-spec.adapter.r // 16) * 16 for spec in specs),
        token_budget=16384,
        evaluation_token_budget=16384,
        graph_tokens=graph_tokens,
    )
    others = other_ranks(folder, num_ranks=num_ranks, settings=settings, rows=rows, weights=weights)
    decoder = rank_zero_decoder(folder, weights=weights)
    local = local_rank(folder, decoder, settings=settings, rows=rows, kind=LocalExecutor)
    return ReplicatedExecutor(local, others), time.perf_counter() - began


def specs_of(options: argparse.Namespace, *, count: int) -> list[TrialSpec]:
    return trial_specs([RANKS[index % len(RANKS)] for index in range(count)], batch_size=options.batch_size)


def _measure(
    executor: ReplicatedExecutor, gpus: Sequence[int], *, options: argparse.Namespace
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, Any]]:
    notes: dict[str, Any] = {}
    if executor.num_ranks > 1:
        notes["same_bits_on_two_ranks"] = same_bits(executor, options)
        notes["same_bits_after_a_move"] = _same_after_move(executor, options)
        notes["links"] = _links(executor, options)
        print(notes)
    rows: list[dict[str, Any]] = []
    for num_gpus in gpus:
        for scaling, count in (("weak", options.trials * num_gpus), ("strong", options.trials)):
            if num_gpus == 1 and scaling == "strong":
                continue
            specs = specs_of(options, count=count)
            for spec in specs:
                executor.load(spec, rank=spec.trial_id // len(RANKS) % num_gpus)
            rows.append({"gpus": num_gpus, "scaling": scaling, "trials": count, **timed(executor, options.steps)})
            print(rows[-1])
            for spec in specs:
                executor.drop(spec.trial_id)
    one = rows[0]["tokens_per_second"]
    headline = {"tokens_per_second_1": one}
    for row in rows[1:]:
        row["times_one_gpu"] = row["tokens_per_second"] / one
        headline[f"scaling_{row['scaling']}_{row['gpus']}"] = row["times_one_gpu"]
    headline |= {
        f"scaling_share_{row['gpus']}": row["times_one_gpu"] / row["gpus"]
        for row in rows[1:]
        if row["scaling"] == "weak"
    }
    return headline, rows, notes


def timed(executor: ReplicatedExecutor, steps: int, *, after: int = 3) -> dict[str, Any]:
    """Return the median step and the tokens a second over ``steps`` steps, after others."""
    for _ in range(after):
        executor.step()
    seconds, tokens = [], 0
    for _ in range(steps):
        began = time.perf_counter()
        # each step ends with a read of its losses, so the GPUs are done when it returns
        tokens += sum(event.num_tokens for event in executor.step())
        seconds.append(time.perf_counter() - began)
    return {
        "step_ms": statistics.median(seconds) * 1e3,
        "tokens_per_step": tokens / steps,
        "tokens_per_second": tokens / sum(seconds),
    }


def same_bits(executor: ReplicatedExecutor, options: argparse.Namespace) -> bool:
    """Train the same pack on ranks 0 and 1, under other trial numbers, and compare."""
    count = min(8, options.trials)
    twins = []
    for spec in specs_of(options, count=count):
        executor.load(spec, rank=0)
        twin = replace(spec, trial_id=1000 + spec.trial_id)
        executor.load(twin, rank=1)
        twins.append((spec.trial_id, twin.trial_id))
    same = True
    for _ in range(4):
        losses = {event.trial_id: (event.loss, event.grad_norm) for event in executor.step()}
        same = same and all(losses[first] == losses[second] for first, second in twins)
    for first, second in twins:
        same = same and torch.equal(executor.weights(first), executor.weights(second))
        executor.drop(first)
        executor.drop(second)
    return same


def _same_after_move(executor: ReplicatedExecutor, options: argparse.Namespace) -> bool:
    """Move a trial between two steps and compare with one that stayed, each alone on its rank."""
    spec = specs_of(options, count=1)[0]
    stays = replace(spec, trial_id=1000)
    executor.load(stays, rank=1)
    executor.load(spec, rank=0)
    executor.step()
    state = executor.unload(spec.trial_id, on_device=True)
    # alone, as it was: the neighbours of a pack may change its last bits on a GPU
    parked = executor.unload(stays.trial_id, on_device=True)
    executor.load(spec, state, rank=1)
    moved = executor.step()[0]
    moved_weights = executor.weights(spec.trial_id)
    executor.drop(spec.trial_id)
    executor.load(stays, parked, rank=1)
    stayed = executor.step()[0]
    same = (moved.loss, moved.grad_norm) == (stayed.loss, stayed.grad_norm)
    same = same and torch.equal(moved_weights, executor.weights(stays.trial_id))
    executor.drop(stays.trial_id)
    return same


def _links(executor: ReplicatedExecutor, options: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds that the state of an adapter of rank 64 takes between ranks, and its size."""
    spec = trial_specs([64], batch_size=options.batch_size)[0]
    executor.load(spec, rank=1)
    executor.step()

    def opened() -> None:
        executor.state(spec.trial_id, on_device=True)

    def to_host() -> None:
        executor.state(spec.trial_id)

    def moved() -> None:
        state = executor.unload(spec.trial_id, on_device=True)
        executor.load(spec, state, rank=2 if executor.num_ranks > 2 else 0)
        state = executor.unload(spec.trial_id, on_device=True)
        executor.load(spec, state, rank=1)

    state = executor.state(spec.trial_id)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state.adapter.tensors.values())
    found = {
        "state_mib": num_bytes / 2**20,
        "opened_ms": _median_ms(opened),
        "to_host_ms": _median_ms(to_host),
        "there_and_back_ms": _median_ms(moved),
    }
    executor.drop(spec.trial_id)
    return found


def _median_ms(act: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
