"""TPE with early exit against the grid with early exit, for the same number of training samples.

TPE and random search train for real; they may draw any learning rate between the grid's smallest and largest, and its
ranks and batch sizes. New configurations take the slots of those that end, while the samples that trials begun are
expected to use are fewer than the grid with early exit uses on the same set and seed. The search is stopped when it has
used as many, whatever is still in training. What the grid does comes from its recorded curves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grid
from benchmarks.sweeps.record_curves import (
    CURVES,
    add_grid_arguments,
    add_model_arguments,
    build_executor,
    in_processes,
)
from benchmarks.sweeps.run_with_exits import run_with_exits
from benchmarks.sweeps.study_data import EVALUATION_ROWS, STUDIED, read_rows, validation_rows
from cohort.adapters.spec import AdapterSpec
from cohort.training.trial import TrialSpec
from cohort.tuning import (
    Candidate,
    DecisionKind,
    EarlyExitSettings,
    EvaluationSettings,
    Sampler,
    SearchFeedback,
    Study,
    build_sampler,
    parse_space,
    plan_candidate,
)

# as the engine does: a third of the grid's number at once, the others as slots become free
FIRST = 20
MOST_TRIALS = 400
SAMPLERS = ("tpe", "random")


class Search:
    """Turns a sampler's proposals into trials and keeps within a budget of samples."""

    def __init__(
        self,
        sampler: Sampler,
        *,
        rows: int,
        epochs: int,
        scale: float,
        seed: int,
        budget: int,
    ) -> None:
        self._sampler, self._rows, self._epochs, self._scale = sampler, rows, epochs, scale
        self._seed, self._budget = seed, budget
        self._feedback = SearchFeedback(sampler)
        self.study = Study([], EarlyExitSettings())
        self.specs: dict[int, TrialSpec] = {}

    def begin(self) -> None:
        """Propose the first trials."""
        for spec, candidate in self._propose(FIRST):
            self.specs[spec.trial_id] = spec
            self.study.add([candidate])

    @property
    def samples(self) -> int:
        """Training samples used so far."""
        return sum(self.study.trajectory(i).num_steps * spec.batch_size for i, spec in self.specs.items())

    @property
    def committed(self) -> float:
        """Samples used, and those that trials which have not ended are expected to use."""
        kept = {decision.trial_id for decision in self.study.decisions if decision.kind is DecisionKind.KEEP}
        settings, total = EarlyExitSettings(), 0.0
        for trial_id, spec in self.specs.items():
            candidate, steps = self.study.candidate(trial_id), self.study.trajectory(trial_id).num_steps
            if not self.study.status(trial_id).is_final:
                rest = candidate.planned_steps - candidate.warmup_steps
                share = 1.0 if trial_id in kept else settings.kept_share()
                steps = max(steps, candidate.warmup_steps + round(share * rest))
            total += steps * spec.batch_size
        return total

    @property
    def is_over(self) -> bool:
        """Whether the samples are used up."""
        return self.samples >= self._budget

    def after(self, ended: Sequence[int]) -> list[tuple[TrialSpec, Candidate]]:
        """Learn from what was decided; return a new trial for each that ended, while samples are left."""
        del ended  # the decisions tell
        num_ended = self._feedback.take_in(self.study.decisions)
        return self._propose(num_ended) if self.committed < self._budget else []

    def _propose(self, count: int) -> list[tuple[TrialSpec, Candidate]]:
        found = []
        for trial_id, configuration in enumerate(self._sampler.propose(count), start=len(self.study.trial_ids)):
            values: dict[str, Any] = dict(configuration)
            rank, batch_size = int(values["r"]), int(values["batch_size"])
            spec = TrialSpec(
                trial_id=trial_id,
                seed=self._seed,
                adapter=AdapterSpec(r=rank, lora_alpha=2.0 * rank),
                learning_rate=float(values["learning_rate"]) * self._scale,
                batch_size=batch_size,
                num_steps=self._epochs * -(-self._rows // batch_size),
            )
            candidate = plan_candidate(
                spec.trial_id,
                planned_steps=spec.num_steps,
                warmup_fraction=EarlyExitSettings().warmup_fraction,
                settings=EvaluationSettings(),
            )
            found.append((spec, candidate))
        return found


def search_one(arguments: argparse.Namespace, *, sampler: str, grid: Grid, name: str) -> dict[str, Any]:
    """Return what one search found for the grid's price."""
    train = read_rows(arguments.prepared, name, "train", count=arguments.rows)
    count, epochs = int(grid.source.get("evaluation_rows", EVALUATION_ROWS)), int(grid.source["epochs"])
    validation = validation_rows(arguments.prepared, name, seed=grid.seed, count=count)
    replayed = grid.replay(EarlyExitSettings())
    assert replayed.best is not None, "a recorded grid has finite losses"
    space = parse_space(
        {
            "learning_rate": {"min": min(arguments.learning_rates), "max": max(arguments.learning_rates), "log": True},
            "r": list(arguments.ranks),
            "batch_size": list(arguments.batch_sizes),
        }
    )
    search = Search(
        build_sampler(sampler, space, trials=MOST_TRIALS, seed=grid.seed),
        rows=len(train),
        epochs=epochs,
        scale=float(grid.source["learning_rate_scale"]),
        seed=grid.seed,
        budget=replayed.samples_used,
    )
    search.begin()
    widest = AdapterSpec(r=max(arguments.ranks), lora_alpha=1.0)
    room = TrialSpec(trial_id=0, seed=0, adapter=widest, learning_rate=1.0, batch_size=1, num_steps=1)
    executor = build_executor(arguments, [room] * arguments.most_resident, train)
    begun = time.perf_counter()
    run_with_exits(
        executor,
        search.study,
        search.specs,
        validation=validation,
        propose=search.after,
        is_over=lambda: search.is_over,
    )
    best = search.study.result()
    assert best is not None, "a search with finite losses has a best checkpoint"
    spec = search.specs[best.trial_id]
    return {
        "set": grid.name,
        "seed": grid.seed,
        "sampler": sampler,
        "trials": len(search.specs),
        "trials_cut": sum(not search.study.status(trial_id).is_final for trial_id in search.specs),
        "samples_over_grids": search.samples / replayed.samples_used,
        "best_loss": best.value,
        "best_over_full_grids": best.value / grid.best,
        "grid_with_exit_over_full_grids": replayed.best.value / grid.best,
        "best_over_grid_with_exit": best.value / replayed.best.value,
        "best_configuration": f"rate {spec.learning_rate:.3g}, r {spec.adapter.r}, batch {spec.batch_size}",
        "seconds": time.perf_counter() - begun,
    }


def main() -> int:
    """Search, compare, write; return 1 if a search failed."""
    studied = [name for name, entry in STUDIED.items() if entry.role == "studied"]
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    add_grid_arguments(parser)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--sets", nargs="+", default=studied, choices=list(STUDIED))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--curves", type=Path, default=CURVES)
    parser.add_argument("--most-resident", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1, help="searches at once")
    parser.add_argument("--runs", type=Path, required=True, help="folder of what single searches found")
    parser.add_argument("--out", type=Path, default=RESULTS / "search_methods.json")
    arguments = parser.parse_args()
    jobs = [
        (sampler, name, seed) for sampler in arguments.samplers for name in arguments.sets for seed in arguments.seeds
    ]
    paths = {job: arguments.runs / f"{job[0]}_{job[1]}_seed{job[2]}.json" for job in jobs}
    missing = [job for job, path in paths.items() if not path.exists()]
    failed = 0
    if arguments.processes > 1:
        extra = [["--samplers", sampler, "--sets", name, "--seeds", str(seed)] for sampler, name, seed in missing]
        failed = in_processes(extra, processes=arguments.processes)
    else:
        for sampler, name, seed in missing:
            grid = read_grid(arguments.curves / f"{name}_{arguments.name}_seed{seed}.json.gz")
            row = search_one(arguments, sampler=sampler, grid=grid, name=name)
            arguments.runs.mkdir(parents=True, exist_ok=True)
            paths[sampler, name, seed].write_text(json.dumps(row) + "\n", encoding="utf-8")
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in paths.values() if path.exists()]
    if not rows:
        return 1
    print_table(rows, columns=list(rows[0]))
    by_sampler = {
        sampler: [row["best_over_grid_with_exit"] for row in rows if row["sampler"] == sampler]
        for sampler in arguments.samplers
    }
    write_result(
        arguments.out,
        question="Does TPE with early exit find more than the grid with early exit, for the same samples?",
        headline={
            f"{sampler}_over_grid_{kind}": function(ratios)
            for sampler, ratios in by_sampler.items()
            if ratios
            for kind, function in (("median", statistics.median), ("worst", max), ("best", min))
        },
        rows=rows,
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
