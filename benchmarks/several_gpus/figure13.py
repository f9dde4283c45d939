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
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, hf_config, rows_of_lengths
from benchmarks.several_gpus.fsdp_peer import FsdpCase, fsdp_steps
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.part import Part, keep
from benchmarks.several_gpus.rank_profile import profile_steps
from benchmarks.several_gpus.strategies import STRATEGIES, loaded, start, timed
from benchmarks.steps.step_timing import trial_specs
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine
from cohort.memory.demand import Demand
from cohort.memory.strategy_options import strategy_work
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.ranks.training_executor import TrainingExecutor
from cohort.scheduling.strategy_choice import StrategyOption, choose_strategy, predict_seconds
from cohort.tasks.loading import task_from_mapping
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["QUESTION", "measure"]

QUESTION = "How long is a step of 8 adapters with each strategy?"
NUM_ADAPTERS, LENGTH, BATCHES = 8, 256, (1, 2, 4, 8)
# passes of more tokens keep more activations than 80 GB hold next to an 8B model
TOKEN_BUDGET = 8192
# a 70B model keeps 32 MB of activations for a token, and half of an H200 is its weights: larger passes are cut
TOKENS_70B = {"adapter_parallel": 1536, "pipeline": 1536, "tensor": 2560}
# of replicas, which hold no whole 70B model: layers that are all resident, to compare with
OTHER_TOKENS_70B = 1536
# bfloat16 has 8 bits: losses near 12 that are summed in another order differ by some thousandths
SAME = 2e-3
PEER = "fsdp in turn"


def measure(options: argparse.Namespace) -> Part:
    """Return the rows of the peer and of every strategy; they are written as they come."""
    figure = _Figure(options)
    began = time.monotonic()
    if not options.no_peer:
        figure.found += _of_peer(figure.peer_case)
        figure.note_seconds("fsdp", since=began)
    with model_folder(options, figure.config) as folder:
        figure.note_seconds("peer and model", since=began)
        for strategy in options.strategies or _worth(figure.shape):
            figure.measure(strategy, folder)
    return figure.part()


class _Figure:
    """What is measured, and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.on_gpu = options, torch.cuda.is_available()
        self.num_ranks = options.gpus or (torch.cuda.device_count() if self.on_gpu else 2)
        self.shape: str = "tiny" if options.tiny else options.shape
        length = 32 if options.tiny else LENGTH
        num_layers = options.num_layers or (4 if options.tiny else SHAPES[self.shape]["num_hidden_layers"])
        self.batches = tuple(options.batches or (BATCHES[:2] if options.tiny else BATCHES))
        self.config = _config(self.shape, num_layers)
        self.rows = rows_of_lengths([(length // 2, length - length // 2)] * 256, vocab_size=self.config["vocab_size"])
        self.found: list[dict[str, Any]] = []
        self.peer_case = FsdpCase(
            config=self.config,
            num_ranks=self.num_ranks,
            batches=self.batches,
            length=length,
            repeats=2 if options.tiny else 4,
        )
        self.notes: dict[str, Any] = {
            "gpus": self.num_ranks,
            "shape": self.shape,
            "layers": num_layers,
            "layers_of_the_whole_model": SHAPES[self.shape]["num_hidden_layers"],
            "vocabulary": self.config["vocab_size"],
            "adapters": NUM_ADAPTERS,
            "length": length,
            "small_passes": "launched" if options.launched else "recorded",
            "token_budgets": TOKENS_70B if self.shape == "70b" else TOKEN_BUDGET,
            "seconds_of": {},
        }

    def part(self) -> Part:
        """Return what was found so far."""
        columns = ("strategy", "gpus", "batch", "step_seconds", "predicted_seconds", "tokens_per_second")
        headline = _headline(self.found, shape=self.shape)
        return Part(headline=headline, rows=self.found, columns=columns, notes=self.notes)

    def note_seconds(self, what: str, *, since: float) -> None:
        """Note and write what a part of the measurement took, so that the next one can be kept short."""
        self.notes["seconds_of"][what] = round(time.monotonic() - since, 1)
        keep(self.options, self.part())

    def measure(self, strategy: str, folder: Path) -> None:
        """Add the rows of a strategy, one for each batch."""
        began = time.monotonic()
        most = TOKENS_70B.get(strategy, OTHER_TOKENS_70B) if self.shape == "70b" else TOKEN_BUDGET
        settings = ExecutorSettings(
            num_slots=NUM_ADAPTERS,
            num_rank_rows=16 * NUM_ADAPTERS,
            token_budget=most,
            evaluation_token_budget=TOKEN_BUDGET,
            # as a run records small passes; stages of a pipeline record none
            graph_tokens=4097 if self.on_gpu and not self.options.launched else 0,
        )
        executor = start(folder, strategy, num_ranks=self.num_ranks, rows=self.rows, settings=settings)
        self.note_seconds(f"starting {strategy}", since=began)
        began = time.monotonic()
        try:
            for batch in self.batches:
                for gpus in (1, self.num_ranks) if strategy == "replicas" else (self.num_ranks,):
                    self._measure_batch(executor, strategy, folder, batch=batch, gpus=gpus)
        finally:
            executor.close()
        self.note_seconds(strategy, since=began)
        del executor
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def _measure_batch(self, executor: TrainingExecutor, strategy: str, folder: Path, *, batch: int, gpus: int) -> None:
        specs = trial_specs([16] * NUM_ADAPTERS, batch_size=batch)
        loaded(executor, specs, first_rank_only=gpus == 1)
        window, repeats = (2, 1) if self.options.tiny else (max(2, 8 // batch), 2)
        row = timed(executor, specs, window=window, repeats=repeats)
        name = "one GPU" if gpus == 1 else strategy
        budget = executor.token_budgets[PassKind.TRAIN]
        row["predicted_seconds"] = _predicted(name, folder, specs, self.rows, num_ranks=gpus, pass_tokens=budget)
        print({"strategy": name, "batch": batch} | {key: row[key] for key in row if key != "first_losses"}, flush=True)
        self.found.append({"strategy": name, "gpus": gpus, "batch": batch, **row})
        keep(self.options, self.part())
        if self.options.profile:
            self.found[-1]["profile"] = profile_steps(executor, {spec.trial_id: 2 for spec in specs})
            keep(self.options, self.part())
        for spec in specs:
            executor.drop(spec.trial_id)


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


def _predicted(name: str, folder: Path, specs: Any, rows: TokenisedRows, *, num_ranks: int, pass_tokens: int) -> float:
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
    demand = Demand(
        task=task_from_mapping(
            {"model_name_or_path": str(folder), "dataset": {"train": "org/rows"}}, base_directory=folder
        ),
        machine=machine,
        config=config,
        layout=AdapterLayout(linear_shapes(config)),
        specs=specs,
        rows=rows,
    )
    work = strategy_work(demand)
    work = replace(work, pass_tokens=pass_tokens)
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
        if row["batch"] in peer:
            row["times_fsdp"] = peer[row["batch"]] / row["step_seconds"]
            name = short.get(row["strategy"], row["strategy"])
            headline[f"{name}_vs_fsdp_{shape}_bs{row['batch']}"] = row["times_fsdp"]
    regrets, possible = [], _worth(shape)
    for batch in first:
        several = [row for row in ours if row["batch"] == batch and row["strategy"] in possible]
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
            if batch in peer:
                headline[f"choice_vs_fsdp_{shape}_bs{batch}"] = peer[batch] / seconds[choice.strategy]
    if regrets:
        headline["choice_regret_worst"] = max(regrets)
    headline["losses_agree"] = float(all(row["worst_loss_error"] < SAME for row in ours))
    return headline
