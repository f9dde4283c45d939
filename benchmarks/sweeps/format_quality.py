"""What do lighter frozen weights and optimizer states cost in quality, on real models and data?

``python -m benchmarks.sweeps.format_quality --shared FOLDER``. The same small sweep (learning rates by ranks, no early
exit) on two real models for each format and seed: the best validation loss against that of plain weights, whether the
same trial wins or one within 1 % of it, and the rank correlation of the trials' final losses. What changes with the
seed alone stands next to it: another seed's plain sweep. No GPU; the models are small, so their weights are few and
their errors larger than those of models that people train.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.bd_quality import tasks
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.loading import load_dataset
from cohort.models.targets import select_linears
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.tasks.loading import task_from_mapping
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.optimizers import optimizer_for
from cohort.training.trial import TrialSpec, TrialState

QUESTION = "What do quantised frozen weights and 8-bit optimizer states cost in quality?"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a sweep is trained with."""

    quantization: str = "none"
    optim: str = "adamw"


VARIANTS = {
    "plain": Variant(),
    "fp8": Variant(quantization="fp8"),
    "int8": Variant(quantization="int8"),
    "nf4": Variant(quantization="nf4"),
    "adamw_8bit": Variant(optim="adamw_8bit"),
}
RATES, RANKS = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2), (8,)
# most tokens of a row; a word problem's prompt alone has more than 64
LENGTHS = {"lower-case stories, babyllama105": 64, "word problems, stories260K, attention only": 192}


class Study:
    """One task: its model and its rows."""

    def __init__(self, task: dict[str, Any], *, max_length: int) -> None:
        dataset = {**task["dataset"], "validation": 0.2, "on_long_rows": "truncate", "max_train_samples": 800}
        dataset["max_length"] = max_length
        loaded = task_from_mapping({**task, "dataset": dataset}, base_directory=Path.cwd())
        self.directory, self.modules = Path(task["model_name_or_path"]), task["lora"]["target_modules"]
        tokenizer = load_tokenizer(self.directory)
        data = load_dataset(loaded.dataset_settings(), tokenizer=tokenizer, evaluation_max_examples=48)
        self.train, self.validation = data.train, data.validation

    def final_losses(self, variant: Variant, *, seed: int, steps: int) -> tuple[list[float], list[float]]:
        """Return the validation loss of every trial at its end, in the order of the grid, on the base model that it was
        trained on and on the plain one; all train in one pack.
        """
        executor, specs = self._trained(variant, seed=seed, steps=steps)
        found = self._evaluated(executor)
        if variant.quantization == "none":
            return found, found
        plain = self._executor(replace(variant, quantization="none"))
        for spec in specs:
            plain.load(spec, TrialState(adapter=AdapterState(weights=executor.weights(spec.trial_id))))
        return found, self._evaluated(plain)

    def winner(self, variant: Variant, *, seed: int, steps: int) -> tuple[AdapterLayout, AdapterSpec, Tensor]:
        """Return the best adapter of a sweep, by its loss on the base model that it was trained on."""
        executor, specs = self._trained(variant, seed=seed, steps=steps)
        losses = self._evaluated(executor)
        best = specs[losses.index(min(losses))]
        return executor.bank.layout, best.adapter, executor.weights(best.trial_id)

    def _trained(self, variant: Variant, *, seed: int, steps: int) -> tuple[Executor, list[TrialSpec]]:
        executor, specs = self._executor(variant), list(_specs(variant, seed=seed, steps=steps))
        for spec in specs:
            executor.load(spec)
        for _ in range(steps):
            executor.step()
        return executor, specs

    def _evaluated(self, executor: Executor) -> list[float]:
        rows = range(len(self.validation))
        found = executor.evaluate(executor.resident, rows=self.validation, row_ids=rows)
        return [found[trial_id].loss for trial_id in sorted(found)]

    def _executor(self, variant: Variant) -> Executor:
        decoder = load_decoder(self.directory, dtype="float32", weight_format=variant.quantization)
        linears = select_linears(self.modules, paths=decoder.linears)
        return Executor(
            decoder,
            target_linears={name: decoder.linears[name] for name in linears},
            train_rows=self.train,
            settings=ExecutorSettings(num_slots=8, num_rank_rows=128, token_budget=2048, evaluation_token_budget=4096),
            optimizer=optimizer_for((variant.optim,)),
        )


def _specs(variant: Variant, *, seed: int, steps: int) -> Iterator[TrialSpec]:
    for number, (rate, r) in enumerate(itertools.product(RATES, RANKS)):
        yield TrialSpec(
            trial_id=number,
            seed=seed,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=rate,
            batch_size=4,
            num_steps=steps,
            optim=variant.optim,
        )


def compare(found: Sequence[float], plain: Sequence[float], *, on_plain: Sequence[float]) -> dict[str, float]:
    """Return how a sweep's losses differ from those of plain weights with the same seed."""
    best, best_plain = min(found), min(plain)
    winner = list(found).index(best)
    return {
        "best": best,
        "best_over_plain": best / best_plain,
        # the adapter that wins here, on the base model as published
        "on_plain_over_plain": on_plain[winner] / best_plain,
        # what the plain sweep knows of the trial that wins here
        "winner_over_best": plain[winner] / best_plain,
        "same_winner": float(plain[winner] == best_plain),
        "rank_correlation": float(spearmanr(found, plain).statistic),
        "largest_difference": max(abs(a / b - 1) for a, b in zip(found, plain, strict=True)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with models/ and data/")
    parser.add_argument("--variants", nargs="+", choices=sorted(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--task", default="", help="run only the tasks whose name begins with this")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tiny", action="store_true", help="two steps of one seed, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "format_quality.json")
    options = parser.parse_args(arguments)
    steps, seeds = (2, [0]) if options.tiny else (options.steps, options.seeds)
    rows: list[dict[str, Any]] = []
    for name, task in tasks(options.shared).items():
        if not name.startswith(options.task):
            continue
        study = Study(task, max_length=LENGTHS[name])
        plain = {seed: study.final_losses(VARIANTS["plain"], seed=seed, steps=steps)[0] for seed in seeds}
        for seed in seeds[1:]:
            compared = compare(plain[seed], plain[seeds[0]], on_plain=plain[seed])
            rows.append({"task": name, "variant": "another seed", "seed": seed, **compared})
        for variant in (each for each in options.variants if each != "plain"):
            for seed in seeds:
                found, on_plain = study.final_losses(VARIANTS[variant], seed=seed, steps=steps)
                compared = compare(found, plain[seed], on_plain=on_plain)
                rows.append({"task": name, "variant": variant, "seed": seed, **compared})
            print_table(rows, columns=list(rows[0]))
            write_result(
                options.out,
                question=QUESTION,
                headline=headline(rows),
                rows=rows,
                notes={"steps": steps, "rates": RATES, "ranks": RANKS},
            )


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over tasks and seeds."""
    found: dict[str, float] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        word = variant.replace(" ", "_")
        found[f"{word}_best_over_plain"] = statistics.mean(row["best_over_plain"] for row in own)
        found[f"{word}_on_plain_over_plain"] = statistics.mean(row["on_plain_over_plain"] for row in own)
        found[f"{word}_rank_correlation"] = statistics.mean(row["rank_correlation"] for row in own)
        found[f"{word}_winner_over_best"] = statistics.mean(row["winner_over_best"] for row in own)
        found[f"{word}_worst_over_plain"] = max(row["best_over_plain"] for row in own)
        found[f"{word}_same_winner_share"] = statistics.mean(row["same_winner"] for row in own)
    return found


if __name__ == "__main__":
    main()
