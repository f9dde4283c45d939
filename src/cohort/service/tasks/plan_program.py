"""The program that plans a task: ``python -m cohort.service.tasks.plan_program``.

Reads a task as JSON from standard input and prints what it would take. It has a process of its own: reading rows and
proposing trials takes a processor, and a client's rows may take more memory than the server has to spare.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError
from cohort.core.process.parent_death import die_with_parent
from cohort.machine.devices import hardware_of
from cohort.planning.check import check_task
from cohort.planning.estimate.estimate import estimate_task
from cohort.prepare.inputs import machine_of
from cohort.tasks.loading import task_from_mapping

__all__ = ["main", "planned"]


def planned(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a task would take: time, tokens and memory.

    Raises:
        InputError: everything that is wrong with the task and its rows.
    """
    task = task_from_mapping(document, base_directory=Path("/"), name="task")
    report = check_task(task, max_problems=20)
    machine = machine_of(task, num_gpus=task.num_gpus)
    option = estimate_task(task, hardware_of(machine)).options[0]
    outlook = report.outlook
    least, most = outlook.tokens_per_trial
    return {
        "object": "cohort.plan",
        "trials": report.num_trials,
        "steps_per_trial": list(outlook.steps_per_trial),
        "tokens_per_trial": list(outlook.tokens_per_trial),
        # the price: what is trained if no trial ends early, and evaluations as a share of it
        "tokens": {"least": least * report.num_trials, "most": most * report.num_trials},
        "evaluation_share": outlook.evaluation_share,
        "seconds": outlook.seconds,
        "most_seconds": outlook.most_seconds,
        "time_source": outlook.source,
        "memory_bytes": option.memory_bytes,
        "device": report.device,
        "data": report.data.to_json(),
        "notes": list(report.notes),
        "warnings": list(report.warnings),
    }


def main() -> None:
    """Read the task, plan it, print the plan or what is wrong."""
    die_with_parent(os.getppid())
    order = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_seconds"],) * 2)
    answer: dict[str, Any]
    try:
        answer = {"plan": planned(order["task"])}
    except CohortError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
