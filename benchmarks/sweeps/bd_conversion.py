"""LoRA converted to BD-LoRA: spectra of trained adapters, what conversion loses, and training on from there.

Trains LoRA on two real tasks, converts it at equally many parameters (plain, and whitened by the inputs of training
rows), distils for some steps, and trains BD-LoRA from scratch for as many steps as LoRA had and as distillation had.
No GPU.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.bd_quality import tasks
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import block_spectra, convert_to_blocks, input_blocks
from cohort.adapters.variants.block_diagonal import BlockDiagonal, rank_of_equal_size
from cohort.data.loading import load_dataset
from cohort.models.targets import select_linears
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.tasks.loading import task_from_mapping
from cohort.training.compression.distillation import distill
from cohort.training.compression.input_grams import input_grams
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec, TrialState

_BATCH, _RATE = 4, 5e-3
# the start is near: at the rate of training AdamW leaves it before it learns
_DISTILLATION_RATE = _RATE / 10


class Study:
    """One task: its model, rows and layout, and the losses of adapters on the validation rows."""

    def __init__(self, task: dict[str, Any]) -> None:
        dataset = {**task["dataset"], "validation": 0.2, "on_long_rows": "truncate", "max_train_samples": 1200}
        loaded = task_from_mapping({**task, "dataset": dataset}, base_directory=Path.cwd())
        directory = Path(task["model_name_or_path"])
        data = load_dataset(loaded.dataset_settings(), tokenizer=load_tokenizer(directory), evaluation_max_examples=48)
        self.train, self.validation = data.train, data.validation
        self.decoder = load_decoder(directory, dtype="float32", device="cpu")
        chosen = select_linears(task["lora"]["target_modules"], paths=self.decoder.linears)
        self.layout = AdapterLayout({name: self.decoder.linears[name] for name in chosen})

    def executor(self) -> Executor:
        sizes = ExecutorSettings(num_slots=2, num_rank_rows=128, token_budget=8192, evaluation_token_budget=8192)
        return Executor(self.decoder, target_linears=self.layout.linears, train_rows=self.train, settings=sizes)

    def trained(self, adapter: AdapterSpec, *, steps: int) -> tuple[torch.Tensor, float]:
        """Return the weights after ``steps`` steps from scratch, and their validation loss."""
        executor, spec = self.executor(), _trial(adapter, steps=steps)
        executor.load(spec)
        for _ in range(steps):
            executor.step()
        return executor.weights(0), self._loss(executor)

    def loss(self, adapter: AdapterSpec, weights_rD: torch.Tensor) -> float:
        executor = self.executor()
        executor.load(_trial(adapter, steps=1), TrialState(adapter=AdapterState(weights=weights_rD)))
        return self._loss(executor)

    def base_loss(self) -> float:
        return self.executor().evaluate_base(rows=self.validation, row_ids=range(len(self.validation))).loss

    def _loss(self, executor: Executor) -> float:
        return executor.evaluate([0], rows=self.validation, row_ids=range(len(self.validation)))[0].loss


def _trial(adapter: AdapterSpec, *, steps: int) -> TrialSpec:
    return TrialSpec(
        trial_id=0,
        seed=0,
        adapter=adapter,
        learning_rate=_RATE,
        batch_size=_BATCH,
        num_steps=steps,
        schedule=Schedule.COSINE,
        warmup_ratio=0.05,
    )


def convert(study: Study, name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one task."""
    plain = AdapterSpec(r=options.rank, lora_alpha=2.0 * options.rank)
    weights, loss = study.trained(plain, steps=options.steps)
    rows: list[dict[str, Any]] = [
        {"task": name, "what": "base model", "loss": study.base_loss()},
        {"task": name, "what": f"LoRA, r {plain.r}, {options.steps} steps", "loss": loss},
    ]
    samples = [study.train.sample(i) for i in sorted(random.Random(0).sample(range(len(study.train)), options.whiten))]
    for nblocks in options.nblocks:
        blocks = BlockDiagonal(nblocks=nblocks)
        r = rank_of_equal_size(study.layout.linears, r=plain.r, blocks=blocks)
        parts = {linear: input_blocks(blocks, linear, shape) for linear, shape in study.layout.linears.items()}
        grams = input_grams(study.decoder, study.layout, plain, weights, input_blocks=parts, samples=samples)
        spectra = torch.cat(list(block_spectra(study.layout, weights, blocks=blocks).values()))
        rows.append(
            {
                "task": name,
                "what": f"spectrum of {nblocks} blocks: largest to smallest value, mean over blocks",
                "spectrum": (spectra / spectra[:, :1]).mean(dim=0).tolist(),
            }
        )
        converted = {}
        for kind, given in (("plain", None), ("whitened", grams)):
            found = converted[kind] = convert_to_blocks(study.layout, plain, weights, blocks=blocks, r=r, grams=given)
            rows.append(
                {
                    "task": name,
                    "what": f"{nblocks} blocks, r {r}, {kind}",
                    "error": found.mean_error,
                    "loss": study.loss(found.spec, found.weights_RD),
                }
            )
        start = converted["whitened"]
        for steps in options.distill:
            distilled = distill(
                study.decoder,
                study.layout,
                teacher=(plain, weights),
                student=(start.spec, start.weights_RD),
                rows=study.train,
                num_steps=steps,
                batch_size=_BATCH,
                learning_rate=_DISTILLATION_RATE,
            )
            what = f"{nblocks} blocks, r {r}, whitened, {steps} steps of distillation"
            rows.append({"task": name, "what": what, "loss": study.loss(start.spec, distilled.weights_rD)})
        for steps in (*options.distill, options.steps):
            scratch = AdapterSpec(r=r, lora_alpha=2.0 * r, use_bdlora=blocks)
            what = f"{nblocks} blocks, r {r}, from scratch, {steps} steps"
            rows.append({"task": name, "what": what, "loss": study.trained(scratch, steps=steps)[1]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and write its result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder with models/ and data/")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--nblocks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--distill", type=int, nargs="+", default=[20])
    parser.add_argument("--whiten", type=int, default=16)
    parser.add_argument("--tasks", default="", help="only tasks whose name contains this")
    parser.add_argument("--tiny", action="store_true", help="a minute at most, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "bd_conversion.json")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.steps, options.nblocks, options.distill, options.whiten = 2, [2], [2], 2
    rows = []
    chosen = {name: task for name, task in tasks(options.shared).items() if options.tasks in name}
    for name, task in chosen.items():
        rows += convert(Study(task), name, options)
    print_table(rows, columns=("task", "what", "error", "loss"))
    errors = [row["error"] for row in rows if "error" in row]
    write_result(
        options.out,
        question="What does converting LoRA to BD-LoRA lose, and does training repair it?",
        headline={"least_error": min(errors), "largest_error": max(errors)},
        rows=rows,
    )


if __name__ == "__main__":
    main()
