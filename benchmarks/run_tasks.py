"""How near is a real queue of tasks to its simulation, and how much sooner does the plan end than other orders?

Six tasks of different data, ranks and priorities on two GPUs (``--workers 2``: two CPU processes), worked off for real
once for every policy: first come, shortest first, longest first, and the plan. The instance is the classical one on
which the longest first is worst: 3, 3, 2, 2, 2 units of time and a short urgent task.

First a small queue warms the kernels' caches and tells how many steps make a unit of time. Then the policies run; what
the tasks took under the first of them, over their worst cases, is what the simulator is given as early exits for the
others; all know the same worst cases. Makespans count from the first task's start to the last one's end, so the
workers' own start is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import RESULTS, print_table, write_result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cohort.cluster.local import LocalPool, LocalSlot
from cohort.core.errors import InputError
from cohort.engine.run_store_reading import RunReader
from cohort.engine.task_queue.expectation import Expectation, hardware_of_slots
from cohort.engine.task_queue.head_settings import HeadSettings
from cohort.engine.task_queue.pool_choice import WORKER_TARGET
from cohort.engine.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.engine.task_queue.slot_choice import choose_slots
from cohort.engine.task_queue.working import add_to_queue, open_queue, work_off
from cohort.scheduling.baselines import ListPolicy
from cohort.scheduling.placement_records import Cluster, TaskOption, TaskRequest
from cohort.scheduling.simulate import SimulatedTask, SimulationSettings, simulate

POLICIES: dict[str, ListPolicy | None] = {
    "first come": ListPolicy.FIRST_COME,
    "shortest first": ListPolicy.SHORTEST_FIRST,
    "longest first": ListPolicy.LONGEST_FIRST,
    "planned": None,
}
# both selections, at known moments; the detectors, which end trials at moments that depend on their losses, are off
EARLY_EXIT = {"warmup_fraction": 0.1, "select_fraction": 0.5, "slope_threshold": 1e6, "gap_threshold": 1e6}
RATES = [1e-4, 3e-4, 1e-3, 3e-3]
# steps of the tasks that warm up and of those that are measured, on the CPU and on a GPU
MEASURED_STEPS = {"cpu": 40, "gpu": 200}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tasks are like but for their length: rows, ranks, examples a step."""

    terms: int
    ranks: tuple[int, ...]
    batch_size: int


# the two kinds of task have steps of different cost; units of time are what they are given
SHAPES = {
    "long rows": Shape(terms=48, ranks=(8, 32), batch_size=2),
    "short rows": Shape(terms=16, ranks=(4, 16), batch_size=4),
}
# (name, shape, units, priority), in the order in which they are submitted
TASKS = [
    ("sums", "short rows", 2.0, 0),
    ("chains", "long rows", 3.0, 0),
    ("pairs", "short rows", 2.0, 0),
    ("ledger", "long rows", 2.0, 0),
    ("digits", "short rows", 3.0, 0),
    ("urgent", "short rows", 0.3, 1),
]


def write_model(folder: Path, *, is_small: bool) -> None:
    """Write a random Llama with a byte-level tokenizer: 0.2 billion parameters, or a tiny one for the CPU."""
    import torch

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    width = 64 if is_small else 1024
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2 if is_small else 16,
        num_attention_heads=width // 16 if is_small else 16,
        num_key_value_heads=width // 32 if is_small else 8,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_rows(path: Path, *, terms: int, seed: int, count: int = 256) -> None:
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        numbers = [rng.randrange(10) for _ in range(rng.randint(terms // 2, terms))]
        lines.append(json.dumps({"prompt": "+".join(map(str, numbers)) + "=", "completion": str(sum(numbers))}))
    path.write_text("\n".join(lines) + "\n")


def write_task(folder: Path, name: str, shape: Shape, *, steps: int, priority: int = 0, seed: int = 0) -> Path:
    write_rows(folder / f"{name}.jsonl", terms=shape.terms, seed=seed)
    task = {
        "base_model": "model",
        "dataset": {"train": f"{name}.jsonl", "validation": 0.125, "max_length": 256},
        "training": {"max_steps": steps, "batch_size": shape.batch_size},
        "evaluation": {"max_examples": 16},
        "search": {"space": {"learning_rate": RATES, "r": list(shape.ranks), "lora_alpha": "2r"}},
        "early_exit": EARLY_EXIT,
        "priority": priority,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(task, indent=1))
    return path


class Notes:
    """Prints what the head says."""

    def update(self, progress: object) -> None:
        """Show nothing: the notes are enough."""

    def note(self, text: str) -> None:
        """Print the line unless it is a trial's."""
        if text.startswith("["):
            print("   ", text, flush=True)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A queue that was worked off."""

    stretches: tuple[RunStretch, ...]
    decisions: tuple[TaskDecision, ...]
    expected: dict[str, float]
    seconds: float

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        ends = [stretch.end_seconds for stretch in self.stretches if stretch.end_seconds is not None]
        return max(ends) - min(stretch.start_seconds for stretch in self.stretches)

    def held(self, task: str) -> float:
        """Seconds in which ``task`` held a slot."""
        return sum((s.end_seconds or 0.0) - s.start_seconds for s in self.stretches if s.task == task)

    def count(self, kind: str) -> int:
        """How many decisions of a kind there were."""
        return sum(decision.kind == kind for decision in self.decisions)


class _Known:
    """Predictions that were made before."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        self._expected = expected

    def __call__(self, task: QueuedTask) -> float:
        return self._expected[task.name]


def work(
    directory: Path,
    files: Sequence[Path],
    slots: Sequence[LocalSlot],
    policy: ListPolicy | None,
    *,
    expected: Mapping[str, float] | None = None,
) -> Outcome:
    """Work off a new queue of ``files`` and return what happened.

    Args:
        directory: Of the queue.
        files: Task files.
        slots: Where workers run.
        policy: None: the planner.
        expected: Worst-case seconds by task, so that all policies know the same; predicted when None.
    """
    expect = Expectation(directory, hardware_of_slots(slots)) if expected is None else _Known(expected)
    begun = time.perf_counter()
    add_to_queue(files, directory, expect=expect)
    pool = LocalPool(slots, target=WORKER_TARGET, log_directory=directory / "workers")
    tasks = work_off(directory, pool, expect=expect, settings=HeadSettings(policy=policy), watcher=Notes())
    for task in tasks:
        if task.state is not TaskState.DONE:
            sys.exit(f"{task.name} is {task.state.value}: {task.reason}")
    with open_queue(directory) as store:
        return Outcome(
            stretches=store.stretches(),
            decisions=store.decisions(),
            expected={task.name: task.expected_seconds or 0.0 for task in store.tasks()},
            seconds=time.perf_counter() - begun,
        )


def measure_shapes(folder: Path, slots: Sequence[LocalSlot], *, num_steps: int) -> dict[str, tuple[float, float]]:
    """Return (seconds beside the steps, seconds of a step) of each shape; the first round only warms up.

    A step is one of the second half, when the selections are over.
    """
    files = {
        (name, turn): write_task(folder, f"{name.split()[0]}{turn}", shape, steps=num_steps, seed=turn)
        for turn in range(2)
        for name, shape in SHAPES.items()
    }
    outcome = work(folder / "measuring", list(files.values()), slots, ListPolicy.FIRST_COME)
    costs = {}
    for name in SHAPES:
        task = files[name, 1].stem
        with RunReader.open(folder / "measuring" / task / "run.db") as reader:
            half = {step.step: step.seconds for step in reader.steps() if step.step >= num_steps // 2}
        step = (half[num_steps] - half[num_steps // 2]) / (num_steps - num_steps // 2)
        costs[name] = (max(outcome.held(task) - step * num_steps, 0.0), step)
        print(f"{name}: {costs[name][0]:.2f} s and {1e3 * step:.1f} ms a step")
    return costs


def predict(expected: dict[str, float], share: float, *, num_slots: int, policy: ListPolicy | None) -> float:
    """Return the makespan that the simulator expects."""
    priorities = {name: priority for name, _, _, priority in TASKS}
    tasks = [
        SimulatedTask(
            request=TaskRequest(
                task_id=name, options=(TaskOption(num_gpus=1, seconds=seconds),), priority=priorities[name]
            )
        )
        for name, seconds in expected.items()
    ]
    settings = SimulationSettings(exit_shares=(min(share, 1.0),), reestimate_share=0.1 * min(share, 1.0), policy=policy)
    # a worst case that was exceeded: the same luck for all, so only the scale changes
    report = simulate(tasks, Cluster.of_one_node(num_slots), settings=settings)
    return report.makespan_seconds * max(share, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, help="GPUs to use (2 in the committed result)")
    parser.add_argument("--workers", type=int, help="CPU processes instead")
    parser.add_argument("--unit-seconds", type=float, default=6.0, help="length of a unit of time")
    parser.add_argument("--output", type=Path, default=RESULTS / "run_tasks.json")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave everything there")
    options = parser.parse_args()
    try:
        slots = choose_slots(gpus=options.gpus, workers=options.workers)
    except InputError as error:
        sys.exit(str(error))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="run_tasks_"))
    folder.mkdir(parents=True, exist_ok=True)
    # the measured costs of steps belong to this run alone
    os.environ["COHORT_CACHE_DIR"] = str(folder / "cache")
    write_model(folder / "model", is_small=options.workers is not None)
    costs = measure_shapes(folder, slots, num_steps=MEASURED_STEPS["cpu" if options.workers else "gpu"])
    files = []
    for seed, (name, kind, units, priority) in enumerate(TASKS):
        beside, step = costs[kind]
        steps = max(20, round((units * options.unit_seconds - beside) / step))
        files.append(write_task(folder, name, SHAPES[kind], steps=steps, priority=priority, seed=seed))
    rows: list[dict[str, Any]] = []
    shares: list[float] = []
    expected: dict[str, float] | None = None
    for policy_name, policy in POLICIES.items():
        print(policy_name)
        outcome = work(folder / policy_name.replace(" ", "-"), files, slots, policy, expected=expected)
        expected = outcome.expected
        share = statistics.median(shares) if shares else None
        predicted = None if share is None else predict(outcome.expected, share, num_slots=len(slots), policy=policy)
        if not shares:
            shares = [outcome.held(name) / outcome.expected[name] for name in outcome.expected]
        rows.append(
            {
                "policy": policy_name,
                "makespan_seconds": outcome.makespan,
                "simulated_seconds": predicted,
                "plans": outcome.count("plan"),
                "replans_by_early_exit": outcome.count("reestimate"),
                "with_start_of_workers_seconds": outcome.seconds,
                "tasks": {
                    name: {"worst_case_seconds": outcome.expected[name], "seconds": outcome.held(name)}
                    for name in outcome.expected
                },
            }
        )
    report(rows, slots, options, costs)
    if options.keep is None:
        shutil.rmtree(folder)


def report(
    rows: Sequence[dict[str, Any]], slots: Sequence[LocalSlot], options: argparse.Namespace, costs: dict[str, Any]
) -> None:
    planned = rows[-1]
    best_baseline = min(row["makespan_seconds"] for row in rows[:-1])
    headline = {
        "run_tasks_real_over_simulated": planned["makespan_seconds"] / planned["simulated_seconds"],
        "run_tasks_planned_over_best_baseline": planned["makespan_seconds"] / best_baseline,
        "run_tasks_planned_seconds": planned["makespan_seconds"],
    }
    print_table(rows, columns=[column for column in planned if column != "tasks"])
    print(headline)
    write_result(
        options.output,
        question="How near is a queue of tasks to its simulation, and how much sooner does it end than other orders?",
        headline=headline,
        rows=rows,
        notes={
            "slots": [slot.slot.device for slot in slots],
            "tasks_in_units": {name: units for name, _, units, _ in TASKS},
            "unit_seconds": options.unit_seconds,
            "seconds_beside_steps_and_of_a_step": costs,
        },
    )


if __name__ == "__main__":
    main()
