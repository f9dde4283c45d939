"""What does a sweep of 60 trials with early exit cost on several GPUs, against one GPU and one ordinary run?

As `benchmarks/sweeps/sweep_price.py`: true shapes, random weights, rows of GSM8K's lengths, the product's own study,
admission and loop, the losses of recorded curves. The 8B shape trains on replicas and on one GPU, next to PEFT on one
GPU; the 70B shape on shards and with its layers divided over the GPUs, next to FSDP2 with PEFT on the same GPUs, since
no GPU holds it. Each sweep runs twice, and the second is priced: in the first, ranks record graphs and launch what they
meet for the first time. Prices leave out loading, compiling, recording graphs and what a trial costs once (new
adapters, states parked and moved), which are given as well. Fewer layers than the shape has make both sides of a price
cheaper alike; of a 70B shape the bank is then as small as that next to the whole model. Parked states and best weights
stay on the GPUs, each part on its own where ranks share the model; `--states-on-host` moves them to the host's memory,
as next to the whole model, which leaves no room for them.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.llama_shapes import gsm8k_rows, hf_config
from benchmarks.several_gpus.benchmark_ranks import local_rank, other_ranks, rank_zero_decoder
from benchmarks.several_gpus.fsdp_peer import FsdpCase, fsdp_steps
from benchmarks.several_gpus.kernels_ahead import compile_kernels
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.part import Part, keep
from benchmarks.several_gpus.rank_reports import report_rows
from benchmarks.several_gpus.replayed_ranks import ReplayedRanks
from benchmarks.several_gpus.strategies import start
from benchmarks.steps.step_timing import peft_step
from benchmarks.sweeps.replayed_run import train_all
from benchmarks.sweeps.replayed_sweep import Curves, TimedExecutor, run_sweep
from benchmarks.sweeps.sweep_grid import PlannedGridTrial, plan_grid
from benchmarks.sweeps.sweep_price import RECORDED_EXITS, _evaluation_plan, _sizes
from cohort.data.tokenised import TokenisedRows
from cohort.machine.compile_ahead.launched_model import stand_in_decoder
from cohort.machine.compile_ahead.launches import kinds_of_adapters
from cohort.memory.budget import Sizes
from cohort.memory.rank_groups import GROUP_STRATEGIES
from cohort.models.config_file import read_config
from cohort.models.counts import count_model
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.step_window import window_steps
from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["QUESTION", "measure"]

QUESTION = "What does a sweep of 60 trials cost on several GPUs, in ordinary runs over the same rows?"
CURVES = Path(__file__).parents[1] / "sweeps" / "curves" / "gsm8k_llama16M_seed0.json.gz"
COLUMNS = ("gpus", "strategy", "seconds", "state_seconds", "capture_seconds", "tokens_per_second", "price", "times_one")
# of an ordinary run, to time
MOST_STEPS = 16
# for parked states
HOST_BYTES = 100 << 30
# rank rows of the bank and tokens of a pass. Next to half of a 70B model and passes that are recomputed, an H200 has 41
# GB for the rows of adapters, and a row of 80 layers takes 233 MB; it keeps the activations of passes of 1,536 tokens.
# Shards have no two buffers of a layer and half of the token tables, 5 GB, and a row takes 158 MB, its undivided
# factors included; the bank is that of both GPUs together, and so are the tokens
NEXT_TO_70B = {"adapter_parallel": (176, 1536), "tensor": (288, 2560)}
SHARED = ("adapter_parallel", "tensor")


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    shape = "tiny" if options.tiny else options.shape
    config = hf_config(shape, num_layers=options.num_layers or (4 if options.tiny else None))
    divides = shape in ("70b", "tiny") and options.shape == "70b"
    rows = gsm8k_rows(8 if options.tiny else 160, vocab_size=config["vocab_size"])
    validation = gsm8k_rows(16 if options.tiny else 128, vocab_size=config["vocab_size"], seed=1)
    planned = plan_grid(len(rows))[:: 5 if options.tiny else 1]
    runs = _ordinary(shape, config, rows, num_ranks=num_ranks, is_fsdp=divides)
    print(runs, flush=True)
    found: list[dict[str, Any]] = []
    detail: dict[str, Any] = {}
    notes: dict[str, Any] = {
        "gpus": num_ranks,
        "shape": shape,
        "layers": config["num_hidden_layers"],
        "rows": len(rows),
        "epochs": 1,
        "ordinary_run": "FSDP2 with PEFT on all GPUs" if divides else "PEFT on one GPU",
        "ordinary_runs": runs,
        "left_out_of_the_price": "loading, compiling, recording graphs, state_seconds",
        "of_each_sweep": detail,
    }

    def part() -> Part:
        name = f"{'70b' if divides else shape}_{num_ranks}gpu"
        strategies = options.strategies or (SHARED if divides else ("replicas",))
        return Part(
            headline=_headline(found, name, names_strategy=len(strategies) > 1),
            rows=found,
            columns=COLUMNS,
            notes=notes,
        )

    num_rows = _evaluation_plan(planned, rows=rows, validation=validation).num_rows
    device = "cuda" if on_gpu else "cpu"

    def swept(executor: ReplayedRanks, sizes: Sizes, *, strategy: str, count: int, flops: float) -> None:
        window = window_steps(num_ranks=count, device_type=device, flops_per_step=flops / count)
        found.append({"strategy": "one GPU" if count == 1 else strategy})
        # ranks that hold the model together have one bank
        banks = 1 if strategy in GROUP_STRATEGIES else count
        for sweep in ("first", "again")[: 1 if options.once else 2] if count > 1 else ("again",):
            row = (_swept if count > 1 else _swept_alone)(
                executor,
                planned,
                curves=Curves(CURVES),
                early_exit=RECORDED_EXITS,
                sizes=replace(sizes, capacity=replace(sizes.capacity, num_ranks=banks)),
                validation=validation,
                num_evaluation_rows=num_rows,
                window=window,
                train_rows=rows,
            )
            detail[f"{strategy}, {count} GPUs, {sweep}"] = row.pop("detail")
            kept = ("seconds", "wall_seconds", "capture_seconds") if sweep == "first" else ()
            found[-1] |= {f"first_{key}": row[key] for key in kept} | {"gpus": count, "window_steps": window} | row
            _price(found, runs)
            print(sweep, found[-1], flush=True)
            keep(options, part())

    with model_folder(options, config) as folder:
        flops = 3 * 2 * count_model(read_config(folder)).linear_flops_per_token * 60 * float(rows.lengths.mean())
        for strategy in options.strategies or (SHARED if divides else ("replicas",)):
            begun = time.perf_counter()
            executor, sizes = _started(folder, strategy, planned, rows, num_ranks=num_ranks)
            if options.states_on_host:
                sizes = replace(sizes, device_state_bytes=0)
            print(f"{strategy} started in {time.perf_counter() - begun:.1f} s", flush=True)
            try:
                notes[f"warm_up_seconds_{strategy}"] = warm = _warm_up(executor, planned, validation)
                print(f"warmed up in {warm:.1f} s", flush=True)
                for count in (num_ranks, 1) if strategy == "replicas" else (num_ranks,):
                    swept(executor, sizes, strategy=strategy, count=count, flops=flops)
            finally:
                executor.close()
            del executor
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    return part()


def _swept(
    executor: ReplayedRanks, planned: Sequence[PlannedGridTrial], *, curves: Curves, window: int, **asked: Any
) -> dict[str, Any]:
    """Return a row of the whole sweep on all ranks; ``asked`` is that of ``train_all``."""
    executor.curves = curves
    executor.clear()
    captured, work, passes = executor.capture_seconds, executor.work, executor.passes
    trained = train_all(
        cast("TrainingExecutor", executor),
        planned,
        curves=curves,
        host_memory_bytes=HOST_BYTES,
        window_steps=window,
        **asked,
    )
    state = executor.state_seconds + trained.shelf_seconds
    capture = executor.capture_seconds - captured
    reports = report_rows(executor.work, work, executor.passes, passes)
    print(reports, flush=True)
    return _row(
        seconds=trained.seconds - state - capture,
        state_seconds=state,
        capture_seconds=capture,
        saved_share=trained.saved_share,
        trained_tokens=executor.trained_tokens,
        evaluated_tokens=executor.evaluated_tokens,
        detail={"rank_reports": reports, "moves": executor.moves, "windows": executor.windows},
    )


def _swept_alone(
    executor: ReplayedRanks, planned: Sequence[PlannedGridTrial], *, curves: Curves, window: int, **asked: Any
) -> dict[str, Any]:
    """Return a row of the sweep on the first rank, as a run on one GPU has it."""
    del window, asked["train_rows"]
    assert executor.first is not None, "one GPU holds the model, in this process"
    times = run_sweep(executor.first, planned, curves=curves, host_memory_bytes=HOST_BYTES, **asked)
    return _row(
        seconds=times.seconds,
        state_seconds=times.state_seconds,
        capture_seconds=times.capture_seconds,
        saved_share=times.saved_share,
        trained_tokens=times.trained_tokens,
        evaluated_tokens=times.evaluated_tokens,
        detail={"parts": times.parts, "replayed_passes": times.replayed_passes, "steps": times.steps},
    )


def _row(*, seconds: float, state_seconds: float, capture_seconds: float, **found: Any) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "wall_seconds": seconds + state_seconds + capture_seconds,
        "state_seconds": state_seconds,
        "capture_seconds": capture_seconds,
        "tokens_per_second": found["trained_tokens"] / seconds,
        **found,
    }


def _ordinary(
    shape: str, config: Mapping[str, Any], rows: TokenisedRows, *, num_ranks: int, is_fsdp: bool
) -> dict[str, float]:
    """Return the seconds of one run over the rows with one adapter, by its batch."""
    if is_fsdp:
        length = round(float(rows.lengths.mean()))
        batches = (1, num_ranks, 8)
        case = FsdpCase(config=dict(config), num_ranks=num_ranks, batches=batches, length=length)
        return {f"batch_{row['batch']}": row["adapter_seconds"] * len(rows) / row["batch"] for row in fsdp_steps(case)}
    found = {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for batch in (1, 8):
        step, model = peft_step(shape, rows, batch_size=batch, device=device, num_layers=config["num_hidden_layers"])
        times = []
        for turn in range(3 + min(MOST_STEPS, len(rows) // batch)):
            begun = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:
                times.append(time.perf_counter() - begun)
        found[f"batch_{batch}"] = sum(times) / len(times) * len(rows) / batch
        del step, model
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def _started(
    folder: Path, strategy: str, planned: Sequence[PlannedGridTrial], rows: TokenisedRows, *, num_ranks: int
) -> tuple[ReplayedRanks, Sizes]:
    """Return the ranks with the sizes that a run would choose on rank 0."""
    config, adapters = read_config(folder), [trial.spec.adapter for trial in planned]
    if strategy in GROUP_STRATEGIES:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        stand_in = stand_in_decoder(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)
        sizes = _next_to_the_whole(_sizes(planned, stand_in, rows=rows, token_budget=None), strategy, device=device)
        del stand_in
        group = start(
            folder,
            strategy,
            num_ranks=num_ranks,
            rows=rows,
            settings=sizes.executor,
            adapters=kinds_of_adapters(adapters),
        )
        assert isinstance(group, GroupedExecutor), "ranks of a group are processes of their own"
        return ReplayedRanks(group, first=None), sizes
    divides = strategy == "adapter_parallel"
    weights = ALL_RESIDENT
    if divides:
        weights = RankWeights(layers=tuple(range(config.num_layers)), num_ranks=num_ranks, are_divided=True)
    decoder = rank_zero_decoder(folder, weights=weights)
    sizes = _sizes(planned, decoder, rows=rows, token_budget=None)
    if divides:
        sizes = _next_to_the_whole(sizes, strategy, device=decoder.device.type)
    others = other_ranks(folder, num_ranks=num_ranks, settings=sizes.executor, rows=rows, weights=weights)
    # while they load: they find the kernels on the disk
    compile_kernels(
        decoder.config,
        adapters=adapters,
        usual=round(float(rows.lengths.mean())),
        token_budget=sizes.executor.token_budget,
    )
    local = local_rank(folder, decoder, settings=sizes.executor, rows=rows, kind=TimedExecutor)
    return ReplayedRanks(ReplicatedExecutor(local, others), first=local), sizes


def _next_to_the_whole(sizes: Sizes, strategy: str, *, device: str) -> Sizes:
    """Return the sizes on GPUs that hold the whole 70B model together."""
    if device != "cuda":
        return sizes
    rank_rows, tokens = NEXT_TO_70B[strategy]
    settings = replace(sizes.executor, num_rank_rows=rank_rows, token_budget=tokens, graph_tokens=tokens + 1)
    capacity = replace(sizes.capacity, rank_rows=rank_rows, tokens_per_step=tokens)
    return replace(sizes, executor=settings, capacity=capacity)


def _warm_up(executor: ReplayedRanks, planned: Sequence[PlannedGridTrial], validation: TokenisedRows) -> float:
    """Compile the kernels that the sweep will use, on every rank at the same time; return the seconds."""
    begun = time.perf_counter()
    for r in (64, 32, 16):
        own = [trial.spec for trial in planned if trial.spec.adapter.r == r and trial.spec.batch_size in (1, 8)]
        for index, spec in enumerate(own[: 2 * executor.num_ranks]):
            rank = index % executor.num_ranks
            if executor.fits_on(rank, spec):
                executor.load(spec, rank=rank)
        executor.step()
        executor.evaluate(executor.resident, rows=validation, row_ids=[0])
        for trial_id in executor.resident:
            executor.drop(trial_id)
    return time.perf_counter() - begun


def _price(found: list[dict[str, Any]], runs: Mapping[str, float]) -> None:
    row = found[-1]
    for batch, seconds in runs.items():
        row["price" if batch == "batch_1" else f"price_{batch}"] = row["seconds"] / seconds
    row["price_all_in"] = row["wall_seconds"] / runs["batch_1"]
    row["times_one"] = found[0]["seconds"] / row["seconds"]


def _headline(found: Sequence[Mapping[str, Any]], name: str, *, names_strategy: bool) -> dict[str, float]:
    several, headline = found[0], dict[str, float]()
    for row in found:
        if row["strategy"] != "one GPU":
            of = f"{name}_{row['strategy']}" if names_strategy else name
            headline |= {f"sweep_{key}_{of}": value for key, value in row.items() if key.startswith("price")}
            continue
        headline["sweep_price_one_gpu"] = row["price"]
        headline[f"sweep_{name}_times_one_gpu"] = row["seconds"] / several["seconds"]
        headline[f"sweep_{name}_times_one_gpu_all_in"] = row["wall_seconds"] / several["wall_seconds"]
    headline["sweep_saved_percent"] = 100 * several["saved_share"]
    return headline
