"""How a plan is printed: what is listed, what is left out, and the notes below it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.cli.tables.plan_tables import print_plan
from cohort.planning.cluster_choice import choose_cluster
from cohort.planning.packs import TaskPacks
from cohort.planning.planning import TaskPlan
from cohort.scheduling.cost.model import CostSource
from cohort.scheduling.packing.records import PackJob, PackPlan
from cohort.scheduling.placement.records import Placement, PlacementPlan, SolverStatus


def plan_of(
    *,
    tasks: int = 2,
    num_gpus: int = 1,
    status: SolverStatus = SolverStatus.OPTIMAL,
    gap: float = 0.0,
    source: CostSource = CostSource.MEASURED,
    bound: float = 600.0,
    numerics: tuple[str | None, ...] = (None,),
) -> TaskPlan:
    """Tasks of ten minutes, one after the other on the first of two GPUs or workers."""
    names = [f"task-{number}" for number in range(tasks)]
    facts = {"num_gpus": num_gpus, "seconds": 600.0, "memory_bytes": 3 << 30, "step_source": source, "is_tight": False}

    def estimate(text: str | None) -> Any:
        return SimpleNamespace(options=(SimpleNamespace(**facts, numerics=text),), num_trials=4, priority=1)

    placements = tuple(
        Placement(
            task_id=name, gpu_ids=tuple(range(num_gpus)), start_seconds=600.0 * place, end_seconds=600.0 * (place + 1)
        )
        for place, name in enumerate(names)
    )
    named: Any = tuple(SimpleNamespace(name=name) for name in names)
    return TaskPlan(
        choice=choose_cluster(gpus=None, workers=None, dry_run="2xH200"),
        tasks=named,
        estimates={name: estimate(numerics[place % len(numerics)]) for place, name in enumerate(names)},
        requests=(),
        plan=PlacementPlan(
            placements=placements,
            status=status,
            solver_gap=gap,
            lower_bound_seconds=bound,
            time_unit_seconds=1.0,
            policy="solver",
        ),
        baselines={"longest first": 1300.0, "first come": 1200.0},
    )


def printed(
    capsys: pytest.CaptureFixture[str],
    planned: TaskPlan,
    simulation: Any = None,
    packs: tuple[TaskPacks, ...] = (),
    page: Path | None = None,
) -> str:
    print_plan(planned, simulation, packs, page=page)
    return capsys.readouterr().out


def test_each_task_has_its_place_times_memory_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, plan_of(), page=Path("plan.html"))
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("task-1"))
    assert row == ["task-1", "4", "1", "GPU", "0", "10m", "00s", "20m", "00s", "10m", "00s", "3.00", "GiB", "measured"]
    assert "2 x H200 (dry run)" in shown
    assert "20m 00s at worst" in shown
    assert "100.0 % above" in shown
    # the better order first
    assert "first come 20m 00s, longest first 21m 40s" in shown
    assert "plan.html" in shown
    assert "note:" not in shown


@pytest.mark.parametrize(
    ("status", "gap", "said"),
    [
        (SolverStatus.OPTIMAL, 0.0, "optimal: no shorter plan exists"),
        (SolverStatus.FEASIBLE, 0.125, "feasible: the best found; at most 12.5 % above the shortest"),
        (SolverStatus.HEURISTIC, math.nan, "heuristic: the best list order; the solver was not run"),
    ],
)
def test_how_good_the_plan_is_known_to_be(
    capsys: pytest.CaptureFixture[str], status: SolverStatus, gap: float, said: str
) -> None:
    shown = printed(capsys, plan_of(status=status, gap=gap))
    assert said in shown
    assert "nan" not in shown


def test_a_plan_below_its_rounded_bound_is_not_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "this plan is 0.0 % above" in printed(capsys, plan_of(bound=1200.0001))


def test_what_the_figures_do_not_know_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    report = SimpleNamespace(
        makespan_seconds=60.0, utilisation=0.5, num_replans=1, num_joined=2, unfinished=("task-0",)
    )
    simulation = SimpleNamespace(planned=report, first_come=report, mean_share=0.25)
    shown = printed(capsys, plan_of(num_gpus=2, source=CostSource.ANALYTIC), simulation)
    assert "note: analytic costs come from sizes and data sheets" in shown
    assert "2 tasks joined another one on its GPU" in " ".join(shown.split())
    assert "note: 1 task never ended in the simulation" in shown
    assert "1m 00s, trials train 25 % of their steps on average; devices busy 50 % of the time, 1 plan" in shown


def test_a_long_list_is_cut_and_says_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, plan_of(tasks=43))
    table = shown.partition("3 more tasks are not listed; --json lists all")[0]
    assert "task-39" in table
    assert "task-40" not in table


def test_a_narrow_terminal_names_the_columns_it_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = printed(capsys, plan_of())
    assert "hidden" in shown
    assert "--json has all" in shown
    for line in shown.splitlines():
        if line.strip().startswith("task-"):
            assert len(line.rstrip()) <= 60


def test_packs_are_summed_up_by_rank_and_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = (
        PackJob(trial_ids=(0, 1, 2), gpu_ids=(0,), start_seconds=0.0, end_seconds=90.0),
        PackJob(trial_ids=(3,), gpu_ids=(1,), start_seconds=0.0, end_seconds=60.0),
    )
    packs = TaskPacks(
        task="sums",
        plan=PackPlan(jobs=jobs, num_gpus=2, policy="solver"),
        bound_seconds=75.0,
        alone_seconds=120.0,
        parameters={0: (8, 4), 1: (8, 4), 2: (16, 4), 3: (32, 2)},
    )
    shown = printed(capsys, plan_of(), packs=(packs,))
    assert "2 of 8 x 4, 16 x 4" in shown
    assert "32 x 2" in shown
    assert "2 packs on 2 GPUs end in 1m 30s, 20.0 % above the bound over all packings" in shown
    assert "training on one GPU takes 2m 00s" in shown
    assert "note: packs show what several GPUs could do for one task" in shown


def test_one_line_says_what_numerics_tasks_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, plan_of(numerics=("exact (a step takes up to 3 % longer, measured on H200)",)))
    assert shown.count("numerics") == 1
    assert "note: numerics: exact (a step takes up to 3 % longer, measured on H200)" in shown
    shown = printed(capsys, plan_of(tasks=5, numerics=("exact", "fast (not measured)")))
    assert "note: numerics for task-0, task-2, task-4: exact" in shown
    assert "note: numerics for task-1, task-3: fast (not measured)" in shown
    assert "numerics" not in printed(capsys, plan_of())
