"""Which sizes a sweep's passes are recorded in, and what that costs: computed on a CPU, from recorded curves.

The product's own loop, admission and choice of sizes run over the rows of ``all_in_price.py`` and the decisions that
recorded curves lead to, with evaluations where the comparisons are. Passes compute nothing (``pass_timeline.py``).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_rows, random_decoder, rows_of_lengths
from benchmarks.measure import print_table
from benchmarks.sweeps.pass_timeline import HostTimes, TimedPasses
from benchmarks.sweeps.replayed_run import train_all
from benchmarks.sweeps.replayed_sweep import Curves
from benchmarks.sweeps.sweep_grid import plan_grid
from benchmarks.sweeps.sweep_inputs import write_task
from cohort.core.events import StepDone
from cohort.memory.budget import Sizes
from cohort.models.config import DecoderConfig
from cohort.ranks.local_executor import LocalExecutor
from cohort.scheduling.admission import Capacity
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS, GraphKind
from cohort.training.executor_settings import ExecutorSettings
from cohort.tuning import EarlyExitSettings
from cohort.tuning.evaluation_times import EvaluationTimes, evaluated_at

__all__ = ["SizedExecutor"]

CURVES = Path(__file__).parent / "curves" / "gsm8k_llama16M_seed0.json.gz"
# shares of training at which trials are compared
COMPARISONS = (0.1, 0.2, 0.65)


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
    host: HostTimes,
    knows_all: bool,
) -> dict[str, Any]:
    """Run the loop of a sweep of 60 trials; return what its passes would take."""
    tiny = decoder_config("tiny")
    with tempfile.TemporaryDirectory() as made:
        pairs = write_task(Path(made), model=Path("model"), shape="8b", num_rows=num_rows)
    rows = rows_of_lengths(pairs, vocab_size=tiny.vocab_size)
    times = EvaluationTimes(warmup_evaluations=0, every_fraction=None, milestones=COMPARISONS)
    planned = [
        replace(trial, candidate=evaluated_at(trial.candidate, times))
        for trial in plan_grid(num_rows, warmup_fraction=COMPARISONS[0])
    ]
    settings = ExecutorSettings(
        num_slots=len(planned),
        num_rank_rows=rank_rows,
        token_budget=token_budget,
        evaluation_token_budget=2 * token_budget,
    )
    decoder = random_decoder(tiny, device="cpu", dtype=torch.float32)
    executor = SizedExecutor(decoder, target_linears=decoder.linears, train_rows=rows, settings=settings)
    executor.curves = curves
    most_rows = min(GRAPH_TOKENS, token_budget)
    passes = TimedPasses(config, executor.bank, most_rows=most_rows, host=host, knows_all=knows_all)
    # in the place of what runs them
    executor._passes = executor._evaluations._passes = passes  # type: ignore[assignment]
    trained = train_all(
        executor,
        planned,
        train_rows=rows,
        curves=curves,
        early_exit=EarlyExitSettings(),
        sizes=Sizes(
            executor=settings,
            capacity=Capacity(rank_rows=rank_rows, num_slots=len(planned), tokens_per_step=token_budget),
        ),
        validation=gsm8k_rows(128, vocab_size=tiny.vocab_size, seed=1),
        num_evaluation_rows=num_evaluation_rows,
        host_memory_bytes=1 << 34,
    )
    passes.timeline.wait()
    return {**_found(passes), "saved": round(trained.saved_share, 3)}


def _found(passes: TimedPasses) -> dict[str, Any]:
    timeline = passes.timeline
    seconds = {
        "sweep": timeline.host,
        "idle": timeline.idle,
        "filler": timeline.filler,
        "of own sizes": timeline.of_own_sizes,
    }
    return {
        **{f"{name} s": round(milliseconds / 1e3, 2) for name, milliseconds in seconds.items()},
        **{f"recorded {when}": timeline.recorded[when] for when in ("before a pass", "behind a step")},
        "passes": passes.num_passes,
        "launched": passes.num_launched,
        "sizes": passes.sizes.get(GraphKind.SUMS, []),
        "of evaluations": passes.sizes.get(GraphKind.MEASURES, []),
    }


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--rank-rows", type=int, default=592)
    parser.add_argument("--token-budget", type=int, default=8192)
    parser.add_argument("--evaluation-rows", type=int, default=9)
    parser.add_argument("--slow-host", action="store_true", help="one that launches and records in 1.6 times as long")
    parser.add_argument("--again", action="store_true", help="a later sweep: the BLAS has been asked")
    parser.add_argument("--curves", type=Path, nargs="+", default=[CURVES])
    arguments = parser.parse_args()
    found = []
    for path in arguments.curves:
        result = sizes_of_a_sweep(
            decoder_config(arguments.shape),
            curves=Curves(path),
            num_rows=arguments.rows,
            rank_rows=arguments.rank_rows,
            token_budget=arguments.token_budget,
            num_evaluation_rows=arguments.evaluation_rows,
            host=HostTimes().times(1.6 if arguments.slow_host else 1.0),
            knows_all=arguments.again,
        )
        found.append({"curves": path.name.removesuffix(".json.gz"), **result})
    print_table(found, columns=[name for name in found[0] if not isinstance(found[0][name], list)])
    for row in found:
        print(row["curves"], "training", row["sizes"], "evaluations", row["of evaluations"])


if __name__ == "__main__":
    main()
