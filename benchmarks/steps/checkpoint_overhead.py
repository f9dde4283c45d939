"""What share of the step time do checkpoints and the run record take, at default settings?

A run's own supervisor, run store, state store and checkpoints drive real training for a while; the seconds within each
are added up. Checkpoints become rarer where they take long, so the share holds for large adapters as well.

    python -m benchmarks.steps.checkpoint_overhead --model ../shared/models/stories260K/hf    # CPU, three minutes
    python -m benchmarks.steps.checkpoint_overhead --shape 1b                              # GPU, three minutes
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_rows, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.checkpoints.checkpoints import save_checkpoint
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import SystemClock
from cohort.core.events import Evaluated
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.step_loop import StepLoop, StopRequestedError
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_traits import TaskTraits
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.scheduling.admission import Capacity
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.study import Study

PLANNED_STEPS = 100_000
EVALUATED_EVERY = 20
# what is timed: (where, method, under what name); within another one it is part of that
TIMED = (
    (LocalExecutor, "step", "train"),
    (LocalExecutor, "evaluate", "evaluate"),
    (Supervisor, "checkpoint", "checkpoint"),
    (TrialStateStore, "put_best", "checkpoint"),
    (TrialStateStore, "put_state", "checkpoint"),
    (RunStore, "append", "record"),
    (RunStore, "trial_entered", "record"),
    (RunStore, "trial_left", "record"),
)


class Seconds:
    """Seconds and calls by name of what is timed."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys((name for _, _, name in TIMED), 0.0)
        self.calls = dict.fromkeys(self.spent, 0)
        self._inside = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time every call of :data:`TIMED` within."""
        with contextlib.ExitStack() as stack:
            for owner, method, name in TIMED:
                stack.enter_context(mock.patch.object(owner, method, self._timed(getattr(owner, method), name)))
            yield

    def _timed(self, method: Any, name: str) -> Any:
        @functools.wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return method(*arguments, **options)
            self._inside, begun = True, time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self._inside = False
                self.spent[name] += time.perf_counter() - begun
                self.calls[name] += 1

        return timed


def specs_of(ranks: Sequence[int], *, batch_size: int) -> dict[int, TrialSpec]:
    """Return one trial for each rank."""
    return {
        trial_id: TrialSpec(
            trial_id=trial_id,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=1e-4,
            batch_size=batch_size,
            num_steps=PLANNED_STEPS,
        )
        for trial_id, r in enumerate(ranks)
    }


def drive(
    decoder: Decoder, specs: Mapping[int, TrialSpec], *, rows: TokenisedRows, folder: Path, seconds: float
) -> tuple[Seconds, float]:
    """Train for ``seconds`` as a run does; return what was timed and the seconds in all."""
    clock, directory = SystemClock(), RunDirectory.create(folder / "run")
    rank_rows = sum(aligned_rank(spec.adapter.r) for spec in specs.values())
    executor = LocalExecutor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(specs), num_rank_rows=rank_rows, token_budget=4096, evaluation_token_budget=8192
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    evaluated = tuple(range(EVALUATED_EVERY, PLANNED_STEPS + 1, EVALUATED_EVERY))
    candidates = [
        Candidate(
            trial_id=trial_id, planned_steps=PLANNED_STEPS, warmup_steps=EVALUATED_EVERY, evaluation_steps=evaluated
        )
        for trial_id in specs
    ]
    study = Study(candidates, EarlyExitSettings(rule="none"))
    store = RunStore.create(directory.database, clock=clock)
    store.add_trials(
        [TrialRecord(trial_id=i, parameters={"r": spec.adapter.r}, planned_steps=PLANNED_STEPS, seed=0)
         for i, spec in specs.items()]
    )  # fmt: skip
    state_store = TrialStateStore(directory, memory_budget_bytes=64 << 30)

    def evaluate(steps: Mapping[int, int]) -> Sequence[Evaluated]:
        found = executor.evaluate(tuple(steps), rows=rows, row_ids=range(8))
        return [Evaluated(trial_id=i, step=steps[i], validation_loss=found[i].loss) for i in steps]

    timed, begun = Seconds(), time.perf_counter()
    supervisor = Supervisor(
        OpenRun(directory=directory, store=store, state_store=state_store, clock=clock),
        study=study,
        share=ExecutorShare(executor, rows=rows),
        specs=specs,
        evaluate=evaluate,
        traits=TaskTraits(mean_length=float(rows.lengths.mean())),
    )
    session = StepLoop(
        executor,
        capacity=Capacity(rank_rows=rank_rows, num_slots=len(specs), tokens_per_step=1e9),
        clock=clock,
        stop_requested=lambda: time.perf_counter() - begun > seconds,
    )
    session.join(supervisor)
    with timed.watching(), contextlib.suppress(StopRequestedError), contextlib.closing(store):
        save_checkpoint(store, state_store, directory=directory, resident=())
        session.run()
    return timed, time.perf_counter() - begun


def main() -> None:
    """Train, add up, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a local model instead of a shape with random weights")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where the run is written for the time")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape="tiny" if arguments.model is not None else arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if arguments.model is not None:
        decoder = load_decoder(arguments.model, dtype=str(dtype).removeprefix("torch."), device=device)
    else:
        decoder = random_decoder(decoder_config(arguments.shape), device=device, dtype=dtype)
    rows = gsm8k_rows(256, vocab_size=decoder.config.vocab_size)
    specs = specs_of([(8, 16, 32, 64)[i % 4] for i in range(arguments.trials)], batch_size=arguments.batch_size)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        timed, seconds = drive(decoder, specs, rows=rows, folder=Path(folder), seconds=arguments.seconds)
        state_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors"))
    in_steps = timed.spent["train"]
    found = [
        {"what": what, "seconds": spent, "calls": timed.calls[what], "of_steps_percent": 100 * spent / in_steps}
        for what, spent in timed.spent.items()
    ]
    print_table(found, columns=list(found[0]))
    headline = {
        "checkpoint_overhead_percent": sum(
            row["of_steps_percent"] for row in found if row["what"] in ("checkpoint", "record")
        ),
        "record_overhead_percent": next(row["of_steps_percent"] for row in found if row["what"] == "record"),
    }
    print(headline)
    write_result(
        arguments.out or RESULTS / f"checkpoint_overhead_{device if arguments.model else arguments.shape}.json",
        question="What share of the step time do checkpoints and the run record take, at default settings?",
        headline=headline,
        rows=found,
        notes={
            "seconds": seconds,
            "trials": len(specs),
            "kept_state_bytes": state_bytes,
            "steps": timed.calls["train"],
        },
    )


if __name__ == "__main__":
    main()
