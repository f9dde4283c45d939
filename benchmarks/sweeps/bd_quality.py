"""BD-LoRA, DoRA and VeRA against LoRA with equally many parameters: the same sweep of learning rates, several seeds.

Two real tasks on two small real models. Each structure (LoRA, BD-LoRA of 2, 4 and 8 blocks, swapped BD-LoRA, DoRA) gets
the rank that is as large as LoRA of ``--rank``, the same learning rates and the same scale; of each seed the best
learning rate counts. VeRA has a parameter for each output and rank and cannot be as large: it gets the largest rank
that its linears allow, up to 256. With ``--jobs`` structures run in processes of their own, on one GPU as well.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.adapters.variants.block_diagonal import (
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    BlockDiagonal,
    num_parameters,
    rank_of_equal_size,
)
from cohort.engine.tune import tune
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.targets import select_linears
from cohort.runs.reader import RunReader
from cohort.tasks.loading import task_from_mapping

STRUCTURES = ("lora", "bd 2", "bd 4", "bd 8", "swapped 2", "swapped 4", "swapped 8", "dora", "vera")
MOST_VERA_RANK = 256
SHOWN = ("task", "structure", "r", "parameters", "loss_mean", "loss_spread")


def blocks_of(structure: str) -> BlockDiagonal | None:
    """Return the block structure that a name stands for; None for those without."""
    kind, _, nblocks = structure.partition(" ")
    if kind not in ("bd", "swapped"):
        return None
    if kind == "bd":
        return BlockDiagonal(nblocks=int(nblocks))
    return BlockDiagonal(nblocks=int(nblocks), target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)


def sized(structure: str, linears: Mapping[str, tuple[int, int]], *, rank: int) -> tuple[dict[str, Any], int]:
    """Return the keys of a structure's ``lora`` section, and its parameters."""
    blocks, per_rank = blocks_of(structure), num_parameters(linears, r=1, blocks=None)
    num_outputs = sum(outs for _, outs in linears.values())
    if structure == "dora":
        # the magnitudes are a parameter for each output
        r = max(1, round((rank * per_rank - num_outputs) / per_rank))
        return {"r": r, "lora_alpha": "2r", "use_dora": True}, r * per_rank + num_outputs
    if structure == "vera":
        r = min(MOST_VERA_RANK, *(ins for ins, _ in linears.values()))
        return {"r": r, "use_vera": True}, num_outputs + r * len(linears)
    if blocks is None:
        return {"r": rank, "lora_alpha": "2r"}, rank * per_rank
    r = rank_of_equal_size(linears, r=rank, blocks=blocks)
    section = {
        "nblocks": blocks.nblocks,
        "target_modules_bd_a": list(blocks.target_modules_bd_a),
        "target_modules_bd_b": list(blocks.target_modules_bd_b),
    }
    return {"r": r, "lora_alpha": "2r", "use_bdlora": section}, num_parameters(linears, r=r, blocks=blocks)


def tasks(shared: Path) -> dict[str, dict[str, Any]]:
    """Return the tasks: models meet text that they were not trained on."""
    return {
        "lower-case stories, babyllama105": {
            "model_name_or_path": str(shared / "models/babyllama105/hf"),
            "dataset": {"train": str(shared / "data/text/tinystories_lowercase.jsonl"), "max_length": 128},
            "lora": {"target_modules": "all-linear"},
        },
        # its feed-forward width, 172, has no 8 blocks
        "word problems, stories260K, attention only": {
            "model_name_or_path": str(shared / "models/stories260K/hf"),
            "dataset": {"train": str(shared / "data/sft/svamp.jsonl"), "max_length": 128},
            "lora": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        },
    }


def run_structure(task: dict[str, Any], structure: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one structure of a task and return its sizes and losses by learning rate and seed."""
    known = linear_shapes(check_checkpoint(Path(task["model_name_or_path"])))
    linears = {name: known[name] for name in select_linears(task["lora"]["target_modules"], paths=known)}
    keys, parameters = sized(structure, linears, rank=options.rank)
    data = {
        **task,
        "dataset": {**task["dataset"], "validation": 0.2, "on_long_rows": "truncate", "max_train_samples": 1200},
        "lora": {**task["lora"], **keys},
        "training": {"max_steps": options.steps, "batch_size": 4, "lr_scheduler_type": "cosine", "warmup_ratio": 0.05},
        "evaluation": {
            "max_examples": 48,
            "warmup_evaluations": 1,
            "every_fraction": 0.5,
            "max_cost_fraction": 1000.0,
            "finalists": 0,
        },
        "search": {"space": {"learning_rate": options.learning_rates, "seed": list(range(options.seeds))}},
        "early_exit": "none",
        "num_gpus": 1 if options.gpu else 0,
        # several processes share the device
        "memory": {"limit": "8GiB"} if options.gpu else {},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        tune(task_from_mapping(data, base_directory=Path(folder)), run)
        with RunReader.open(run / "run.db") as reader:
            trials = [(trial.parameters, trial.best_loss) for trial in reader.trials()]
    losses: dict[int, dict[float, float]] = {}
    for values, loss in trials:
        value = math.inf if loss is None else loss
        losses.setdefault(int(str(values["seed"])), {})[float(str(values["learning_rate"]))] = value
    best = [min(by_rate.values()) for _, by_rate in sorted(losses.items())]
    return {
        "structure": structure,
        "r": keys["r"],
        "parameters": parameters,
        "loss_mean": statistics.mean(best),
        "loss_spread": statistics.stdev(best) if len(best) > 1 else 0.0,
        "best_by_seed": best,
        "best_learning_rate": [min(by_rate, key=by_rate.__getitem__) for _, by_rate in sorted(losses.items())],
        "losses": {str(seed): by_rate for seed, by_rate in losses.items()},
    }


def write(options: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the result file of the rows so far."""
    plain = {row["task"]: row["loss_mean"] for row in rows if row["structure"] == "lora"}
    others = [row for row in rows if row["structure"] != "lora" and row["task"] in plain]
    headline = {
        f"{kind}_over_lora_loss_max": max(
            row["loss_mean"] / plain[row["task"]] for row in others if row["structure"].partition(" ")[0] == kind
        )
        for kind in ("bd", "swapped", "dora", "vera")
        if any(row["structure"].partition(" ")[0] == kind for row in others)
    }
    write_result(
        options.out,
        question="Do BD-LoRA, DoRA and VeRA reach the loss of LoRA with equally many parameters?",
        headline=headline,
        rows=rows,
        notes={"steps": options.steps, "learning_rates": options.learning_rates, "gpu": options.gpu},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and write its result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder with models/ and data/")
    parser.add_argument("--rank", type=int, default=8, help="rank of the plain LoRA that all are as large as")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[3e-3, 1e-2, 3e-2])
    parser.add_argument("--structures", nargs="+", default=list(STRUCTURES))
    parser.add_argument("--gpu", action="store_true", help="train on the GPU")
    parser.add_argument("--jobs", type=int, default=1, help="structures at once, each in a process of its own")
    parser.add_argument("--tiny", action="store_true", help="a minute at most, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "bd_quality.json")
    options = parser.parse_args(arguments)
    options.shared = options.shared.resolve()
    if options.tiny:
        options.steps, options.seeds, options.learning_rates, options.structures = (
            2,
            1,
            [1e-2],
            ["lora", "bd 2", "vera"],
        )
    pairs = [
        (name, task, structure) for name, task in tasks(options.shared).items() for structure in options.structures
    ]
    rows = []
    # spawned: a forked process cannot use the GPU of its parent
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        columns = zip(*((task, structure, options) for _, task, structure in pairs), strict=True)
        for (name, _, _), found in zip(pairs, pool.map(run_structure, *columns), strict=True):
            rows.append({"task": name, **found})
            print(json.dumps({key: rows[-1][key] for key in SHOWN}), flush=True)
            # after every row: what is cut off keeps those it has
            write(options, rows)
    print_table(rows, columns=SHOWN)


if __name__ == "__main__":
    main()
