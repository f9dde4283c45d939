"""What a task and the executor of others must have alike; a session's refusals are tested end to end."""

from __future__ import annotations

from pathlib import Path

from cohort.core.clock import SystemClock
from cohort.engine.shared_fit import fit_problems, several_gpus
from cohort.prepare.preparation import prepare
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


def test_everything_that_differs_is_listed_at_once(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    first = prepare(tiny_task(tmp_path), clock=SystemClock())
    assert not fit_problems(first, first=first, sizes=first.sizes, threads=first.machine.threads)
    other = tiny_task(
        tmp_path, lora={"target_modules": ["q_proj"]}, memory={"margin": 0.2}, training={"optim": "adamw_8bit"}
    )
    found = fit_problems(prepare(other, clock=SystemClock()), first=first, threads=first.machine.threads + 1)
    assert [problem.where.text or str(problem.where) for problem in found]
    texts = [str(problem) for problem in found]
    for text, part in zip(texts, ("target_modules", "memory section", "adamw_8bit", "CPU threads"), strict=True):
        assert part in text


def test_several_gpus_are_refused(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert several_gpus(tiny_task(tmp_path)) is None
    assert several_gpus(tiny_task(tmp_path, num_gpus="auto")) is None
    assert "share one GPU" in str(several_gpus(tiny_task(tmp_path, num_gpus=2)))
