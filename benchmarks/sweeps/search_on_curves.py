"""TPE and random search with early exit on recorded grids, for shares of what the grid with early exit costs.

Each search draws from a grid's own sixty configurations, so every trial's curve is known and nothing is trained. New
configurations take the slots of trials that end, a third of the grid's number to begin with, as in the engine. ``tpe``
learns of each trial at every comparison, as the product does; ``tpe_at_the_end`` of its best loss when it has ended.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import COARSE_STEPS, Grid, read_grids
from cohort.core.events import Evaluated, StepDone
from cohort.tuning import (
    Decision,
    DecisionKind,
    EarlyExitSettings,
    RecordedCurve,
    SearchFeedback,
    Study,
    TrialStatus,
    build_sampler,
    parse_space,
)

CURVES = Path(__file__).parent / "curves"
SAMPLERS = ("random", "tpe", "tpe_at_the_end")
FIRST = 20


class Search:
    """One search over one grid's configurations within a budget of samples, in shares of the full grid's."""

    def __init__(self, grid: Grid, *, sampler: str, seed: int, budget: float) -> None:
        self._grid, self._budget, self._tells_at_the_end = grid, budget, sampler == "tpe_at_the_end"
        self._by_values = {(trial.learning_rate, trial.r, trial.batch_size): trial for trial in grid.trials}
        rates, ranks, sizes = (sorted({key[place] for key in self._by_values}) for place in range(3))
        space = parse_space({"learning_rate": rates, "r": ranks, "batch_size": sizes})
        name = sampler.split("_")[0]
        self._sampler = build_sampler(name, space, trials=len(grid.trials), seed=seed)
        self._feedback = SearchFeedback(self._sampler)
        self.settings = EarlyExitSettings()
        self.study = Study([], self.settings)
        self._curves: dict[int, RecordedCurve] = {}
        self._num_decisions = 0
        self._propose(FIRST)

    def run(self) -> None:
        """Go on until every trial has ended; at most ``FIRST`` are resident."""
        while not self.study.is_finished:
            for trial_id in self.study.runnable()[:FIRST]:
                self._advance(trial_id)

    @property
    def used(self) -> float:
        """Samples used, in shares of the full grid's."""
        steps = sum(self.study.trajectory(trial_id).num_steps for trial_id in self.study.trial_ids)
        return steps / (COARSE_STEPS * len(self._grid.trials))

    def _advance(self, trial_id: int) -> None:
        if self.study.status(trial_id) is not TrialStatus.RUNNING:
            self.study.start(trial_id)
        step, curve = self.study.trajectory(trial_id).num_steps + 1, self._curves[trial_id]
        loss = curve.train_losses[step - 1]
        done = StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.0, learning_rate=0.0, num_tokens=0)
        self.study.observe(done)
        if self.study.next_evaluation(trial_id) == step:
            loss = curve.validation_losses[step]
            self.study.observe(Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics={}))
        new = self.study.decisions[self._num_decisions :]
        self._num_decisions += len(new)
        self._learn(new)

    def _learn(self, decisions: Sequence[Decision]) -> None:
        ended = [d.trial_id for d in decisions if d.kind in (DecisionKind.STOP, DecisionKind.FINISH)]
        if self._tells_at_the_end:
            for trial_id in ended:
                best = self.study.best_of(trial_id)
                self._sampler.tell(trial_id, None if best is None else best.value)
        else:
            self._feedback.take_in(self.study.decisions)
        for _ in ended:
            if self._committed() < self._budget:
                self._propose(1)

    def _committed(self) -> float:
        """Samples used and expected of trials that have not ended, in shares of the full grid's."""
        kept = {d.trial_id for d in self.study.decisions if d.kind is DecisionKind.KEEP}
        total = 0
        for trial_id in self.study.trial_ids:
            steps, candidate = self.study.trajectory(trial_id).num_steps, self.study.candidate(trial_id)
            if not self.study.status(trial_id).is_final:
                share = 1.0 if trial_id in kept else self.settings.kept_share()
                steps = max(
                    steps,
                    candidate.warmup_steps + round(share * (candidate.planned_steps - candidate.warmup_steps)),
                )
            total += steps
        return total / (COARSE_STEPS * len(self._grid.trials))

    def _propose(self, count: int) -> None:
        for trial_id, configuration in enumerate(self._sampler.propose(count), start=len(self.study.trial_ids)):
            values: dict[str, Any] = dict(configuration)
            trial = self._by_values[values["learning_rate"], values["r"], values["batch_size"]]
            curve = self._grid.curve(trial, self.settings)
            candidate = replace(curve.candidate, trial_id=trial_id)
            self._curves[trial_id] = replace(curve, candidate=candidate)
            self.study.add([candidate])


def search(grid: Grid, *, sampler: str, seed: int, share: float) -> dict[str, Any]:
    """Return what one search found for ``share`` of the price of the grid with early exit."""
    settings = EarlyExitSettings()
    whole = grid.replay(settings, coarse=True)
    assert whole.best is not None, "a recorded grid has finite losses"
    found = Search(grid, sampler=sampler, seed=seed, budget=share * (1 - whole.saved_share))
    found.run()
    best = found.study.result()
    assert best is not None, "a recorded grid has finite losses"
    return {
        "sampler": sampler,
        "share_of_the_grids_price": share,
        "set": grid.name,
        "seed": grid.seed,
        "trials": len(found.study.trial_ids),
        "samples_over_grid_with_exit": found.used / (1 - whole.saved_share),
        "best_over_grid_with_exit": best.value / whole.best.value,
        "best_over_full_grid": best.value / grid.best,
    }


def main() -> None:
    """Search, print means, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, nargs="+", default=sorted(CURVES.glob("*_llama16M_seed*.json.gz")))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.75])
    parser.add_argument("--out", type=Path, default=RESULTS / "search_on_curves.json")
    arguments = parser.parse_args()
    grids = read_grids(arguments.curves)
    rows = [
        search(grid, sampler=sampler, seed=grid.seed, share=share)
        for share in arguments.shares
        for sampler in SAMPLERS
        for grid in grids
    ]
    headline, table = {}, []
    for share in arguments.shares:
        for sampler in SAMPLERS:
            own = [row for row in rows if (row["sampler"], row["share_of_the_grids_price"]) == (sampler, share)]
            ratios = [row["best_over_grid_with_exit"] for row in own]
            headline[f"{sampler}_over_grid_at_{share:.0%}_price"] = statistics.fmean(ratios)
            mean = {key: statistics.fmean(row[key] for row in own) for key in ("trials", "samples_over_grid_with_exit")}
            table.append(
                {"sampler": sampler, "share": share, **mean, "mean": statistics.fmean(ratios), "worst": max(ratios)}
            )
    print_table(table, columns=list(table[0]))
    write_result(
        arguments.out,
        question="What do TPE and random search with early exit find for part of the grid's price with early exit?",
        headline=headline,
        rows=rows,
        notes={"curves": [path.name for path in arguments.curves], "values": "the grid's own sixty configurations"},
    )


if __name__ == "__main__":
    main()
