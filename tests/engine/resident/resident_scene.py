"""A tiny base that stays in memory, with requests and sweeps on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.engine.resident.resident_base import ResidentBase
from cohort.engine.resident.sweeps import SweepOrder, Sweeps
from cohort.engine.session_task import TaskEnd
from cohort.engine.train.open_run import RunOptions
from cohort.engine.turns.base_turns import BaseTurns
from cohort.machine.machine import choose_machine
from cohort.memory.budget import Sizes
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.scheduling.admission import Capacity
from cohort.tasks.task_file import TaskFile
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["Ends", "base_of", "order_of", "sweeping"]


def base_of(
    model: Path,
    *,
    turns: BaseTurns | None = None,
    num_slots: int = 8,
    fill_tokens: int = 64,
    tokens_per_step: int = 2048,
) -> ResidentBase:
    """Load a model with room for adapters of 16 rows in each slot."""
    decoder: Decoder = load_decoder(model, dtype="float32", device=torch.device("cpu"))
    rows = 16 * num_slots
    return ResidentBase(
        decoder=decoder,
        directory=model,
        machine=choose_machine(0, where="a test"),
        sizes=Sizes(
            executor=ExecutorSettings(
                num_slots=num_slots, num_rank_rows=rows, token_budget=256, evaluation_token_budget=256
            ),
            capacity=Capacity(rank_rows=rows, num_slots=num_slots, tokens_per_step=tokens_per_step),
        ),
        turns=turns or BaseTurns(),
        fill_tokens=fill_tokens,
    )


@dataclass
class Ends:
    """Keeps how tasks ended, and lets a test wait for them."""

    found: dict[str, TaskEnd] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, end: TaskEnd) -> None:
        with self._changed:
            self.found[end.name] = end
            self._changed.notify_all()

    def wait(self, *names: str, seconds: float = 120) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= set(self.found), timeout=seconds), self.found


def order_of(name: str, task: TaskFile, run: Path, ends: Ends, **keys: object) -> SweepOrder:
    return SweepOrder(name=name, read=lambda: task, run_directory=run, on_end=ends, **keys)  # type: ignore[arg-type]


@contextmanager
def sweeping(base: ResidentBase, *, options: RunOptions | None = None, num_seats: int = 16) -> Iterator[Sweeps]:
    sweeps = Sweeps(base, options=options, num_seats=num_seats)
    sweeps.start()
    try:
        yield sweeps
    finally:
        sweeps.close()


def layout_of(base: ResidentBase) -> AdapterLayout:
    return AdapterLayout(base.decoder.linears)
