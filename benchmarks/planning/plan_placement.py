"""How fast are tasks placed on GPUs, how near the best, and what would a cluster do with hundreds of them?"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.planning.cluster_simulation import simulate
from cohort.planning.simulation_records import SimulatedTask, SimulationSettings
from cohort.scheduling.placement.records import Cluster, SolverStatus, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, list_plan
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan

INSTANCE = Path(__file__).parent / "eleven_tasks.json"
# shares of the planned steps: three quarters end at the warm-up's end, the rest mostly run on (ALTO 5's selection)
EXIT_SHARES = (0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.3, 1.0)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def eleven_tasks() -> tuple[list[TaskRequest], Cluster]:
    content = json.loads(INSTANCE.read_text(encoding="utf-8"))
    tasks = [request(entry["task_id"], entry["num_gpus"], entry["seconds"]) for entry in content["tasks"]]
    return tasks, Cluster.of_one_node(content["num_gpus"])


def request(name: str, num_gpus: int, seconds: float) -> TaskRequest:
    return TaskRequest(task_id=name, options=(TaskOption(num_gpus=num_gpus, seconds=seconds),))


def drawn_tasks(count: int, *, seed: int) -> list[TaskRequest]:
    """Tasks of the widths and lengths of the committed instance."""
    rng = random.Random(seed)
    hours = {4: (4, 9), 2: (2, 7), 1: (0.6, 4)}
    widths = [rng.choice([4, 4, 2, 2, 2, 1, 1, 1, 1, 1, 1]) for _ in range(count)]
    return [request(f"task{i}", width, 3600 * rng.uniform(*hours[width])) for i, width in enumerate(widths)]


def place(name: str, tasks: Sequence[TaskRequest], cluster: Cluster, *, repeats: int) -> dict[str, Any]:
    runs = [timed(lambda: plan_placement(tasks, cluster)) for _ in range(repeats)]
    plan = runs[0][1]
    check_plan(plan, tasks, cluster)
    row = {
        "instance": name,
        "tasks": len(tasks),
        "gpus": cluster.num_gpus,
        "seconds": statistics.median(seconds for seconds, _ in runs),
        "status": plan.status.value,
        "makespan_hours": plan.makespan_seconds / 3600,
        "over_bound": plan.gap,
    }
    for policy in ListPolicy:
        listed = list_plan(tasks, cluster, policy=policy)
        row[policy.value.replace(" ", "_")] = listed.makespan_seconds / plan.makespan_seconds
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=50, help="drawn instances of eleven tasks")
    parser.add_argument("--simulated-tasks", type=int, default=500)
    parser.add_argument("--simulated-gpus", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "plan_placement.json")
    arguments = parser.parse_args()
    tasks, cluster = eleven_tasks()
    committed = place("eleven_tasks.json", tasks, cluster, repeats=arguments.repeats)
    drawn = [
        place(f"drawn {seed}", drawn_tasks(11, seed=seed), cluster, repeats=1) for seed in range(arguments.instances)
    ]
    proven = sum(row["status"] == SolverStatus.OPTIMAL.value for row in drawn)
    print_table([committed, *drawn[:10]], columns=list(committed))
    simulated = [SimulatedTask(request=task, num_trials=60) for task in drawn_tasks(arguments.simulated_tasks, seed=0)]
    large = Cluster(nodes={f"node{n}": tuple(range(8 * n, 8 * n + 8)) for n in range(arguments.simulated_gpus // 8)})
    settings = SimulationSettings(exit_shares=EXIT_SHARES)
    seconds, report = timed(lambda: simulate(simulated, large, settings=settings))
    write_result(
        arguments.out,
        question="How fast are tasks placed, how near the best, and how fast is a cluster simulated?",
        headline={
            "plan_eleven_tasks_seconds": committed["seconds"],
            "plan_eleven_tasks_is_optimal": float(committed["status"] == SolverStatus.OPTIMAL.value),
            "drawn_instances_proven_optimal_percent": 100 * proven / len(drawn),
            "drawn_instances_slowest_seconds": max(row["seconds"] for row in drawn),
            "simulate_500_tasks_on_64_gpus_seconds": seconds,
        },
        rows=[committed, *drawn],
        notes={
            "ratios": "makespan of each list policy over the plan's",
            "threads": "one solver worker",
            "simulation": {
                "tasks": len(simulated),
                "gpus": large.num_gpus,
                "plans": report.num_replans,
                "makespan_hours": report.makespan_seconds / 3600,
                "planned_makespan_hours": report.planned_makespan_seconds / 3600,
                "utilisation": report.utilisation,
                "exit_shares": EXIT_SHARES,
            },
        },
    )
    print(f"simulated {len(simulated)} tasks on {large.num_gpus} GPUs in {seconds:.1f} s")


if __name__ == "__main__":
    main()
