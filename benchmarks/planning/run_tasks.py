"""How near is a real queue of tasks to its simulation, and how much sooner does the plan end than other orders?

Five tasks of different data, ranks and priorities on two GPUs (``--workers 2``: two CPU processes), worked off for real
once for every policy: the plan, longest first, shortest first, first come. The instance is the classical one on which
the longest first is worst: tasks of 3, 3, 2, 2, 2 units of time, which take 6 units at best and 7 in every other order.

Everything that is predicted is predicted before the first policy runs. A first queue warms up: each worker runs a task
of both kinds, so that kernels are compiled and libraries loaded. A second one measures both kinds at two lengths: a
task takes a fixed time (base model, rows, graphs, evaluations, results) and an average step, its early exits in it. The
simulator is given these times as early exits from the worst cases that the planner knows, which come from the costs
that the tasks before left in the cache, as for any queue.

All queues have the same workers, so that none waits for their start, which is reported separately. Makespans count from
the first task's start to the last one's end. The result is written after each policy: a run that is cut keeps what it
has.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.planning.kept_workers import KeptWorkers
from benchmarks.planning.queued_tasks import EARLY_EXIT, SHAPES, TASKS, TaskKind, write_model, write_task
from benchmarks.requirements import need_gpu
from cohort.core.errors import InputError
from cohort.machine.cluster.local import LocalSlot
from cohort.machine.local_slots import choose_slots, hardware_of_slots
from cohort.planning.cluster_simulation import simulate
from cohort.planning.simulation_records import SimulatedTask, SimulationSettings
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import open_queue
from cohort.task_queue.workers.pool import WORKER_TARGET

# what is most wanted first
POLICIES: dict[str, ListPolicy | None] = {
    "planned": None,
    "longest first": ListPolicy.LONGEST_FIRST,
    "shortest first": ListPolicy.SHORTEST_FIRST,
    "first come": ListPolicy.FIRST_COME,
}
# steps of the measured tasks, short and long
MEASURED_STEPS = {"cpu": (20, 100), "gpu": (100, 700)}
LEAST_STEPS = 20
# units of time that all policies take on two slots (6, 7, 7 and 7) and some more; and the most seconds a unit is given
ALL_UNITS, MOST_UNIT_SECONDS = 27.6, 15.0


class Notes:
    """Prints when tasks begin, end or fail; the queue's database has the rest."""

    def update(self, progress: object) -> None:
        """Show nothing: the notes are enough."""

    def note(self, text: str) -> None:
        """Print the line unless it is a trial's, or of a plan."""
        if text.startswith("[") and " will end " not in text and "all tasks end in" not in text:
            print("   ", text[:300], flush=True)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A queue that was worked off."""

    stretches: tuple[RunStretch, ...]
    decisions: tuple[TaskDecision, ...]
    seconds: float

    @property
    def began(self) -> float:
        """When the first task did."""
        return min(stretch.start_seconds for stretch in self.stretches)

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return max(stretch.end_seconds or 0.0 for stretch in self.stretches) - self.began

    def held(self, task: str) -> float:
        """Seconds in which ``task`` held a slot."""
        return sum((s.end_seconds or 0.0) - s.start_seconds for s in self.stretches if s.task == task)

    def count(self, kind: str) -> int:
        """How many decisions of a kind there were."""
        return sum(decision.kind == kind for decision in self.decisions)


def work(
    directory: Path,
    files: Sequence[Path],
    workers: KeptWorkers,
    policy: ListPolicy | None,
    *,
    expected: Mapping[str, float],
) -> Outcome:
    """Work off a new queue of ``files`` (without ``policy`` by the planner); ``expected`` are seconds at worst."""

    def expect(task: QueuedTask) -> float:
        return expected[task.name]

    begun = time.perf_counter()
    add_to_queue(files, directory, expect=expect)
    tasks = work_off(directory, workers, expect=expect, settings=DispatcherSettings(policy=policy), watcher=Notes())
    for task in tasks:
        if task.state is not TaskState.DONE:
            _print_logs(directory.parent / "workers")
            sys.exit(f"{task.name} is {task.state.value}: {task.reason}")
    with open_queue(directory) as store:
        return Outcome(stretches=store.stretches(), decisions=store.decisions(), seconds=time.perf_counter() - begun)


def _print_logs(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        print(f"--- end of {log.name}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n", flush=True)


@dataclass(frozen=True, kw_only=True)
class KindCost:
    """Seconds of tasks of one shape: ``fixed`` and, for each step, ``step``; early exits are in it."""

    fixed: float
    step: float

    def steps_in(self, seconds: float) -> int:
        """Return the steps of a task that takes about ``seconds``."""
        return max(LEAST_STEPS, round((seconds - self.fixed) / self.step))

    def seconds(self, steps: int) -> float:
        """Return how long a task of ``steps`` takes."""
        return self.fixed + self.step * steps


def run_kinds(
    folder: Path, workers: KeptWorkers, turns: Mapping[str, int]
) -> tuple[Outcome, dict[tuple[str, str], float]]:
    """Run a task of each shape for each turn, with the turn's steps; return the outcome and seconds by shape and turn.

    Whichever worker ends its first task goes on with the other shape.
    """
    files = {
        (shape, turn): write_task(folder, f"{shape.split()[0]}-{turn}", SHAPES[shape], steps=steps, seed=seed)
        for turn, steps in turns.items()
        for seed, shape in enumerate(SHAPES)
    }
    expected = {file.stem: 60.0 for file in files.values()}
    directory = folder / "-".join(turns)
    outcome = work(directory, list(files.values()), workers, ListPolicy.FIRST_COME, expected=expected)
    return outcome, {key: outcome.held(file.stem) for key, file in files.items()}


def measure_kinds(folder: Path, workers: KeptWorkers, *, steps: tuple[int, int]) -> dict[str, KindCost]:
    """Return the cost of each shape from a long and a short task."""
    few, many = steps
    _, held = run_kinds(folder, workers, {"long": many, "short": few})
    costs = {}
    for shape in SHAPES:
        step = max((held[shape, "long"] - held[shape, "short"]) / (many - few), 1e-4)
        costs[shape] = KindCost(fixed=max(held[shape, "short"] - few * step, 0.0), step=step)
        print(f"{shape}: {costs[shape].fixed:.2f} s and {1e3 * step:.1f} ms a step")
    return costs


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What is known before any policy runs: seconds by task at worst and as they will be."""

    worst: dict[str, float]
    real: dict[str, float]
    known_after: float

    def makespan(self, policy: ListPolicy | None, *, num_slots: int) -> float:
        """Return what the simulator expects."""
        tasks = [
            SimulatedTask(
                request=TaskRequest(
                    task_id=kind.name,
                    options=(TaskOption(num_gpus=1, seconds=self.worst[kind.name]),),
                    priority=kind.priority,
                ),
                exit_shares=(self.real[kind.name] / self.worst[kind.name],),
            )
            for kind in TASKS
        ]
        settings = SimulationSettings(reestimate_share=self.known_after, policy=policy)
        return simulate(tasks, Cluster.of_one_node(num_slots), settings=settings).makespan_seconds


def predict(
    folder: Path, files: Mapping[str, Path], hardware: Hardware, *, real: dict[str, float], fixed: float
) -> Predictions:
    """Return the predictions for ``files``: worst cases from the cost cache, as any queue is planned by."""
    directory = folder / "predicting"
    add_to_queue(list(files.values()), directory, expect=ExpectedTime(directory, hardware))
    with open_queue(directory) as store:
        estimated = {task.name: task.expected_seconds or 0.0 for task in store.tasks()}
    # an end before the worst case is all that a simulation knows
    worst = {name: max(estimated[name], real[name]) for name in files}
    known = statistics.median(
        (fixed + EARLY_EXIT["warmup_fraction"] * (real[name] - fixed)) / worst[name] for name in files
    )
    return Predictions(worst=worst, real=real, known_after=min(max(known, 0.01), 0.9))


def choose_unit(options: argparse.Namespace, *, spent: float) -> float:
    """Return the seconds of a unit of time: what the user says, else the most with which all policies end in time."""
    if options.unit_seconds is not None:
        return float(options.unit_seconds)
    return min(MOST_UNIT_SECONDS, max(1.0, (options.seconds - spent) / ALL_UNITS))


def main() -> None:
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, help="GPUs to use (2 in the committed result)")
    parser.add_argument("--workers", type=int, help="CPU processes instead")
    parser.add_argument("--unit-seconds", type=float, help="length of a unit of time (default: what --seconds allows)")
    parser.add_argument("--seconds", type=float, default=520.0, help="what all of it may take, about")
    parser.add_argument("--output", type=Path, default=RESULTS / "run_tasks.json")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave everything there")
    options = parser.parse_args()
    if options.workers is None:
        need_gpu()
    slots = _slots(options)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="run_tasks_"))
    folder.mkdir(parents=True, exist_ok=True)
    # the measured costs of steps belong to this run alone
    os.environ["COHORT_CACHE_DIR"] = str(folder / "cache")
    hardware = hardware_of_slots(slots)
    write_model(folder / "model", is_small=options.workers is not None)
    few, many = MEASURED_STEPS["gpu" if hardware.is_gpu else "cpu"]
    workers = KeptWorkers(slots, target=WORKER_TARGET, log_directory=folder / "workers")
    warm, _ = run_kinds(folder, workers, {"warm": many, "warmer": few})
    print(f"workers start in {warm.seconds - warm.makespan:.0f} s, warm up in {warm.makespan:.0f} s")
    costs = measure_kinds(folder, workers, steps=(few, many))
    unit = choose_unit(options, spent=time.perf_counter() - begun)
    steps = {kind.name: costs[kind.shape].steps_in(kind.units * unit) for kind in TASKS}
    files = {kind.name: _write(folder, kind, steps=steps[kind.name], seed=seed) for seed, kind in enumerate(TASKS)}
    predicted = predict(
        folder,
        files,
        hardware,
        real={kind.name: costs[kind.shape].seconds(steps[kind.name]) for kind in TASKS},
        fixed=statistics.mean(cost.fixed for cost in costs.values()),
    )
    simulated = {name: predicted.makespan(policy, num_slots=len(slots)) for name, policy in POLICIES.items()}
    if unit * min(kind.units for kind in TASKS) < 1.2 * max(cost.fixed for cost in costs.values()):
        print("warning: units are so short that tasks mostly start and end: give it more --seconds")
    print(f"a unit is {unit:.1f} s; simulated: " + ", ".join(f"{name} {s:.1f} s" for name, s in simulated.items()))
    notes = {
        "slots": [slot.slot.device for slot in slots],
        "tasks": [{**asdict(kind), "steps": steps[kind.name]} for kind in TASKS],
        "unit_seconds": unit,
        "fixed_seconds_and_seconds_of_a_step": {name: asdict(cost) for name, cost in costs.items()},
        "start_of_workers_seconds": warm.seconds - warm.makespan,
        "warming_seconds": warm.makespan,
        "simulated_seconds_before_any_policy_ran": simulated,
    }
    rows: list[dict[str, Any]] = []
    for name, policy in POLICIES.items():
        print(name, flush=True)
        outcome = work(folder / name.replace(" ", "-"), list(files.values()), workers, policy, expected=predicted.worst)
        rows.append(_row(name, outcome, predicted, simulated=simulated[name]))
        report(rows, options.output, notes)
    workers.end()
    print_table(rows, columns=[column for column in rows[0] if column != "tasks"])
    if options.keep is None:
        shutil.rmtree(folder)


def _slots(options: argparse.Namespace) -> tuple[LocalSlot, ...]:
    try:
        return choose_slots(gpus=options.gpus, workers=options.workers)
    except InputError as error:
        sys.exit(str(error))


def _write(folder: Path, kind: TaskKind, *, steps: int, seed: int) -> Path:
    return write_task(folder, kind.name, SHAPES[kind.shape], steps=steps, priority=kind.priority, seed=seed)


def _row(policy: str, outcome: Outcome, predicted: Predictions, *, simulated: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "makespan_seconds": outcome.makespan,
        "simulated_seconds": simulated,
        "real_over_simulated": outcome.makespan / simulated,
        "plans": outcome.count("plan"),
        "replans_by_early_exit": outcome.count("reestimate"),
        "tasks": {
            kind.name: {
                "worst_case_seconds": predicted.worst[kind.name],
                "predicted_seconds": predicted.real[kind.name],
                "seconds": outcome.held(kind.name),
            }
            for kind in TASKS
        },
    }


def report(rows: Sequence[dict[str, Any]], output: Path, notes: Mapping[str, Any]) -> None:
    """Write what is there by now."""
    planned, *baselines = rows
    headline = {
        "run_tasks_real_over_simulated": planned["real_over_simulated"],
        "run_tasks_planned_seconds": planned["makespan_seconds"],
    }
    if baselines:
        best = min(row["makespan_seconds"] for row in baselines)
        headline["run_tasks_planned_over_best_baseline"] = planned["makespan_seconds"] / best
    print(headline, flush=True)
    write_result(
        output,
        question="How near is a queue of tasks to its simulation, and how much sooner does it end than other orders?",
        headline=headline,
        rows=rows,
        notes={**notes, "policies_not_run": [name for name in POLICIES if name not in {row["policy"] for row in rows}]},
    )


if __name__ == "__main__":
    main()
