"""Which sizes a sweep's passes are recorded in, and what that costs: computed on a CPU, from recorded curves.

The product's own loop, admission and recording policy run over the rows and decisions of ``sweep_price.py``; passes
compute nothing. What each would take on a GPU follows from its rows by a line that was fitted to a measured sweep.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_rows, random_decoder
from benchmarks.measure import print_table
from benchmarks.sweeps.replayed_run import train_all
from benchmarks.sweeps.replayed_sweep import Curves
from benchmarks.sweeps.sweep_grid import plan_grid
from cohort.core.events import StepDone
from cohort.data.packing import SlotSample
from cohort.memory.budget import Sizes
from cohort.models.config import DecoderConfig
from cohort.ranks.local_executor import LocalExecutor
from cohort.scheduling.admission import Capacity
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind, RecordingPolicy
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.group_terms import group_slots
from cohort.tuning import EarlyExitSettings

__all__ = ["Cost", "RecordedSizes", "SizedExecutor"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Milliseconds of a pass: a part that each has, one for each row, and the host's to launch or record it."""

    fixed: float
    per_row: float
    launching: float
    recording: float


# an 8B decoder on one H200, host of 2026-11-23: passes and recordings of sweep_price_8b_against_table.json
TRAINING = Cost(fixed=8.0, per_row=0.0565, launching=190.0, recording=200.0)
EVALUATION = Cost(fixed=12.0, per_row=0.0222, launching=70.0, recording=110.0)


# the host launches passes through 2, 6 and 2 of 32 layers to estimate the largest recording: 10/32 of a launch
RESERVING_SHARE = 0.3

# "ahead": while the device is at a step
WHAT = ("training", "evaluation", "recording", "recording ahead", "of own sizes")

CURVES = Path(__file__).parent / "curves" / "gsm8k_llama16M_seed0.json.gz"


class RecordedSizes:
    """Takes the place of an executor's passes: chooses a graph for each, and adds up what it would take."""

    def __init__(self, config: DecoderConfig, *, most_rows: int, costs: Mapping[bool, Cost]) -> None:
        """``costs``: by whether a pass trains."""
        self._policy, self._most_rows, self._costs = RecordingPolicy(config, exact=True), most_rows, costs
        self.recorded: dict[bool, list[PassShape]] = {True: [], False: []}
        self.milliseconds = dict.fromkeys(WHAT, 0.0)
        self.launched = self.passes = 0
        self._has_recorded = False

    context = 1 << 20

    def train(
        self,
        entries: Sequence[SlotSample],
        _steps: object,
        *,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
        **_: object,
    ) -> Tensor:
        """Note a training pass."""
        self._note(entries, upcoming)
        return torch.zeros(len(group_slots(entries)))

    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        """Note a pass of an evaluation."""
        self._note(entries, None, trains=False)
        return torch.zeros(sum(len(entry.sample.tokens) for entry in entries))

    def _note(
        self,
        entries: Sequence[SlotSample],
        upcoming: Callable[[], Sequence[PassShape]] | None,
        *,
        trains: bool = True,
    ) -> None:
        need, cost, use = PassShape.of(entries), self._costs[trains], None
        own = cost.fixed + cost.per_row * need.num_rows
        recorded, kind = self.recorded[trains], GraphKind.SUMS if trains else GraphKind.MEASURES
        to_come = None if upcoming is None else lambda: [p for p in upcoming() if p.num_rows <= self._most_rows]
        if need.num_rows <= self._most_rows:
            use, record = self._policy.choose(need, recorded=recorded, kind=kind, upcoming=to_come)
            if record is not None and record.num_rows <= self._most_rows:
                use, self._has_recorded = record, True
                if trains and not recorded:
                    largest = self._policy.largest(record, most_rows=self._most_rows)
                    if self._policy.is_near(record, largest):
                        use = largest
                    else:
                        self.milliseconds["recording"] += RESERVING_SHARE * cost.launching
                recorded.append(use)
                self.milliseconds["recording"] += cost.recording
        took = max(own, cost.launching) if use is None else cost.fixed + cost.per_row * use.num_rows
        self.milliseconds["training" if trains else "evaluation"] += took
        self.milliseconds["of own sizes"] += own
        self.launched += use is None
        self.passes += 1

    def record_ahead(self, upcoming: Callable[[], Sequence[PassShape]], *, num_rows: float) -> None:
        """Note what would be recorded while the device is at a step."""
        has_recorded, self._has_recorded = self._has_recorded, False
        if has_recorded or not self.recorded[True] or not self._policy.hides_recording(num_rows):
            return
        to_come = [need for need in upcoming() if need.num_rows <= self._most_rows]
        for trains, kind, known in ((True, GraphKind.SUMS, to_come), (False, GraphKind.MEASURES, [])):
            ahead = self._policy.ahead(recorded=self.recorded[trains], kind=kind, upcoming=known)
            if ahead is not None and ahead.num_rows <= self._most_rows:
                self.recorded[trains].append(ahead)
                self.milliseconds["recording ahead"] += self._costs[trains].recording
                return
        if self._policy.has_time_to_spare(num_rows):
            recorded = self.recorded[True]
            spare = self._policy.spare(recorded=recorded, kind=GraphKind.SUMS, most_rows=self._most_rows)
            if spare is not None:
                self.recorded[True].append(spare)
                self.milliseconds["recording ahead"] += self._costs[True].recording


class SizedExecutor(LocalExecutor):
    """Takes steps whose passes are only noted, with the losses of recorded curves."""

    curves: Curves

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """As the executor's."""
        return tuple(
            replace(
                event,
                loss=self.curves.at(event.trial_id, event.step / self._residents[event.trial_id].spec.num_steps)[0],
            )
            for event in super().step(trial_ids)
        )


def sizes_of_a_sweep(
    config: DecoderConfig,
    *,
    curves: Curves,
    num_rows: int,
    rank_rows: int,
    token_budget: int,
    num_evaluation_rows: int,
    costs: Mapping[bool, Cost],
) -> dict[str, Any]:
    """Run the loop of a sweep of 60 trials; return what its passes would take."""
    tiny = decoder_config("tiny")
    rows = gsm8k_rows(num_rows, vocab_size=tiny.vocab_size)
    planned = plan_grid(num_rows)
    settings = ExecutorSettings(
        num_slots=len(planned),
        num_rank_rows=rank_rows,
        token_budget=token_budget,
        evaluation_token_budget=2 * token_budget,
    )
    decoder = random_decoder(tiny, device="cpu", dtype=torch.float32)
    executor = SizedExecutor(decoder, target_linears=decoder.linears, train_rows=rows, settings=settings)
    executor.curves = curves
    noted = RecordedSizes(config, most_rows=token_budget, costs=costs)
    # in the place of what runs them
    executor._passes = executor._evaluations._passes = noted  # type: ignore[assignment]
    trained = train_all(
        executor,
        planned,
        train_rows=rows,
        curves=curves,
        early_exit=EarlyExitSettings(ema_weight=1.0),
        sizes=Sizes(
            executor=settings,
            capacity=Capacity(rank_rows=rank_rows, num_slots=len(planned), tokens_per_step=token_budget),
        ),
        validation=gsm8k_rows(128, vocab_size=tiny.vocab_size, seed=1),
        num_evaluation_rows=num_evaluation_rows,
        host_memory_bytes=1 << 34,
    )
    return {
        **{f"{name} s": round(milliseconds / 1e3, 2) for name, milliseconds in noted.milliseconds.items()},
        "passes": noted.passes,
        "launched": noted.launched,
        "saved": round(trained.saved_share, 3),
        "sizes": sorted(shape.num_rows for shape in noted.recorded[True]),
        "of evaluations": sorted(shape.num_rows for shape in noted.recorded[False]),
    }


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rank-rows", type=int, default=752)
    parser.add_argument("--token-budget", type=int, default=4096)
    parser.add_argument("--evaluation-rows", type=int, default=1)
    parser.add_argument("--slow-host", action="store_true", help="one that launches and records in 1.6 times as long")
    parser.add_argument("--curves", type=Path, nargs="+", default=[CURVES])
    arguments = parser.parse_args()
    slower = 1.6 if arguments.slow_host else 1.0
    costs = {
        trains: Cost(**{**asdict(cost), "launching": slower * cost.launching, "recording": slower * cost.recording})
        for trains, cost in ((True, TRAINING), (False, EVALUATION))
    }
    found = []
    for path in arguments.curves:
        result = sizes_of_a_sweep(
            decoder_config(arguments.shape),
            curves=Curves(path),
            num_rows=arguments.rows,
            rank_rows=arguments.rank_rows,
            token_budget=arguments.token_budget,
            num_evaluation_rows=arguments.evaluation_rows,
            costs=costs,
        )
        found.append({"curves": path.name.removesuffix(".json.gz"), **result})
    print_table(found, columns=[name for name in found[0] if not isinstance(found[0][name], list)])
    for row in found:
        print(row["curves"], "training", row["sizes"], "evaluations", row["of evaluations"])


if __name__ == "__main__":
    main()
