"""How long is a step of 8 adapters with each strategy, by the batch of each adapter?

ALTO's Figure 13: 8 adapters, rows of 256 tokens, batches of 1, 2, 4 and 8 rows, one base model on all GPUs. The peer is
FSDP2, which trains the adapters one after another (`fsdp_peer.py`). Ours train them together: replicas, adapter
parallelism with every layer divided, tensor parallelism and a pipeline, next to one GPU alone where it holds the model.
What `strategy: auto` would choose is compared with the fastest. First losses of our strategies are compared with each
other.

With fewer layers than the shape has, the vocabulary is as much smaller, so that the head keeps its share; passes are as
small as they would be next to the whole model.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, hf_config, rows_of_lengths
from benchmarks.several_gpus.fsdp_peer import FsdpCase, fsdp_steps
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.part import Part, keep
from benchmarks.several_gpus.strategies import STRATEGIES, loaded, start, timed
from benchmarks.steps.step_timing import trial_specs
from cohort.data.tokenised import TokenisedRows
from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine
from cohort.memory.strategy_options import strategy_work
from cohort.models.config_file import read_config
from cohort.scheduling.strategy_choice import StrategyOption, choose_strategy, predict_seconds
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["QUESTION", "measure"]

QUESTION = "How long is a step of 8 adapters with each strategy?"
NUM_ADAPTERS, LENGTH, BATCHES = 8, 256, (1, 2, 4, 8)
# passes of more tokens keep more activations than 80 GB hold next to an 8B model
TOKEN_BUDGET = 8192
# a 70B model keeps 32 MB of activations for a token, and half of an H200 is its weights: larger passes are cut
TOKENS_70B = {"adapter_parallel": 1536, "pipeline": 1536, "tensor": 2560}
# bfloat16 has 8 bits: losses near 12 that are summed in another order differ by some thousandths
SAME = 2e-3
PEER = "fsdp in turn"


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    shape, length = ("tiny", 32) if options.tiny else (options.shape, LENGTH)
    num_layers = options.num_layers or (4 if options.tiny else SHAPES[shape]["num_hidden_layers"])
    batches = tuple(options.batches or (BATCHES[:2] if options.tiny else BATCHES))
    config = _config(shape, num_layers)
    notes = {
        "gpus": num_ranks,
        "shape": shape,
        "layers": num_layers,
        "layers_of_the_whole_model": SHAPES[shape]["num_hidden_layers"],
        "vocabulary": config["vocab_size"],
        "adapters": NUM_ADAPTERS,
        "length": length,
        "small_passes": "launched" if options.launched else "recorded",
        "token_budgets": TOKENS_70B if shape == "70b" else TOKEN_BUDGET,
    }
    rows = rows_of_lengths([(length // 2, length - length // 2)] * 256, vocab_size=config["vocab_size"])
    found: list[dict[str, Any]] = []

    def part() -> Part:
        columns = ("strategy", "gpus", "batch", "step_seconds", "predicted_seconds", "tokens_per_second")
        return Part(headline=_headline(found, shape=shape), rows=found, columns=columns, notes=notes)

    case = FsdpCase(
        config=config, num_ranks=num_ranks, batches=batches, length=length, repeats=2 if options.tiny else 4
    )
    found += _of_peer(case)
    keep(options, part())
    with model_folder(options, config) as folder:
        for strategy in options.strategies or _worth(shape):
            most = TOKENS_70B.get(strategy, TOKEN_BUDGET) if shape == "70b" else TOKEN_BUDGET
            settings = ExecutorSettings(
                num_slots=NUM_ADAPTERS,
                num_rank_rows=16 * NUM_ADAPTERS,
                token_budget=most,
                evaluation_token_budget=TOKEN_BUDGET,
                # as a run records small passes; stages of a pipeline record none
                graph_tokens=4097 if on_gpu and not options.launched else 0,
            )
            executor = start(folder, strategy, num_ranks=num_ranks, rows=rows, settings=settings)
            try:
                for batch in batches:
                    specs = trial_specs([16] * NUM_ADAPTERS, batch_size=batch)
                    for gpus in (1, num_ranks) if strategy == "replicas" else (num_ranks,):
                        loaded(executor, specs, first_rank_only=gpus == 1)
                        window, repeats = (2, 1) if options.tiny else (max(2, 8 // batch), 2)
                        row = timed(executor, specs, window=window, repeats=repeats)
                        name = "one GPU" if gpus == 1 else strategy
                        row["predicted_seconds"] = _predicted(name, folder, specs, rows, num_ranks=gpus)
                        found.append({"strategy": name, "gpus": gpus, "batch": batch, **row})
                        print({key: value for key, value in found[-1].items() if key != "first_losses"}, flush=True)
                        keep(options, part())
                        for spec in specs:
                            executor.drop(spec.trial_id)
            finally:
                executor.close()
            del executor
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    return part()


def _of_peer(case: FsdpCase) -> list[dict[str, Any]]:
    """Return rows of FSDP2: a step of all adapters is one of each, in turn."""
    rows = []
    for row in fsdp_steps(case):
        seconds = NUM_ADAPTERS * row["adapter_seconds"]
        rate = NUM_ADAPTERS * row["batch"] * case.length / seconds
        own = {"step_seconds": seconds, "tokens_per_second": rate}
        rows.append({"strategy": PEER, "gpus": case.num_ranks, **row, **own})
    return rows


def _config(shape: str, num_layers: int) -> dict[str, Any]:
    config = hf_config(shape, num_layers=num_layers)
    share = min(1.0, num_layers / SHAPES[shape]["num_hidden_layers"])
    if share < 1:
        config |= {"vocab_size": round(config["vocab_size"] * share / 64) * 64, "bos_token_id": 0, "eos_token_id": 1}
    return config


def _worth(shape: str) -> Sequence[str]:
    """Return the strategies in order of worth: no GPU holds a whole 70B model."""
    groups = [strategy for strategy in STRATEGIES if strategy != "replicas"]
    return groups if shape == "70b" else [*groups, "replicas"]


def _predicted(name: str, folder: Path, specs: Any, rows: TokenisedRows, *, num_ranks: int) -> float:
    """Return what ``strategy: auto`` predicts for a step of all trials."""
    on_gpu = torch.cuda.is_available()
    machine = Machine(
        device=torch.device("cuda", 0) if on_gpu else torch.device("cpu"),
        device_name=torch.cuda.get_device_name() if on_gpu else "cpu",
        dtype="bfloat16" if on_gpu else "float32",
        threads=torch.get_num_threads(),
        memory_bytes=torch.cuda.mem_get_info()[0] if on_gpu else 8 << 30,
    )
    config = read_config(folder)
    work = strategy_work(machine, config=config, specs=specs, rows=rows)
    strategy = "replicas" if name == "one GPU" else name
    divided = config.num_layers if name == "adapter_parallel" else 0
    return predict_seconds(strategy, work, hardware_of(machine), num_gpus=num_ranks, divided_layers=divided)


def _headline(found: list[dict[str, Any]], *, shape: str) -> dict[str, float]:
    """Compare every row with the peer's of the same batch, and what would be chosen with the fastest."""
    peer = {row["batch"]: row["step_seconds"] for row in found if row["strategy"] == PEER}
    ours = [row for row in found if row["strategy"] != PEER]
    first = {row["batch"]: row["first_losses"] for row in reversed(ours)}
    headline: dict[str, float] = {}
    short = {"adapter_parallel": "ap", "one GPU": "one_gpu"}
    for row in ours:
        pairs = zip(row["first_losses"], first[row["batch"]], strict=True)
        row["worst_loss_error"] = max(abs(own - expected) / abs(expected) for own, expected in pairs)
        row["times_fsdp"] = peer[row["batch"]] / row["step_seconds"]
        name = short.get(row["strategy"], row["strategy"])
        headline[f"{name}_vs_fsdp_{shape}_bs{row['batch']}"] = row["times_fsdp"]
    regrets = []
    for batch in peer:
        several = [row for row in ours if row["batch"] == batch and row["strategy"] != "one GPU"]
        choice = choose_strategy(
            [
                StrategyOption(strategy=row["strategy"], seconds=row["predicted_seconds"], device_bytes=0)
                for row in several
            ]
        )
        # of one strategy there is nothing to choose
        if choice is not None and len(several) > 1:
            seconds = {row["strategy"]: row["step_seconds"] for row in several}
            regrets.append(seconds[choice.strategy] / min(seconds.values()))
            headline[f"choice_vs_fsdp_{shape}_bs{batch}"] = peer[batch] / seconds[choice.strategy]
    if regrets:
        headline["choice_regret_worst"] = max(regrets)
    headline["losses_agree"] = float(all(row["worst_loss_error"] < SAME for row in ours))
    return headline
