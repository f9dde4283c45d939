"""Tiny tasks that tune in about a second, and what a run left behind in a form that can be compared bit by bit."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.core.clock import ManualClock
from cohort.engine.train.watching.progress import RunProgress
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision
from cohort.runs.requests.asking import ask
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tasks.loading import TaskFile, task_from_mapping
from tests.cli.tiny_task import write_rows, write_tiny_model
from tests.tuning.loss_curves import BY_RANK

__all__ = ["Asking", "Interrupting", "Outcome", "TickingClock", "outcome_of", "tiny_data", "tiny_task", "write_inputs"]


def write_inputs(folder: Path) -> Path:
    """Write a random model with its tokenizer and rows to ``folder``; return it."""
    folder.mkdir(exist_ok=True)
    write_tiny_model(folder / "model")
    write_rows(folder / "train.jsonl", count=24)
    return folder


def tiny_data(**sections: Any) -> dict[str, Any]:
    """Return a task as plain data with the paths of :func:`write_inputs`; sections are merged key by key."""
    data: dict[str, Any] = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl", "validation": 0.25, "max_length": 64},
        "lora": {"target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": "2r", "lora_dropout": 0.1},
        "training": {"max_steps": 8, "batch_size": 2},
        # so small a task would be evaluated at its comparisons alone
        "evaluation": {"max_examples": 4, "max_cost_fraction": 1000.0},
        "search": {"space": {"learning_rate": [1e-3, 1e-2, 3e-2], "r": [2, 4]}},
        # six trials of eight steps: by default too few of both to end any
        "early_exit": {"warmup_fraction": 0.25, "select_fraction": 0.5, **BY_RANK},
        "num_gpus": 0,
    }
    for name, section in sections.items():
        merged = {**data.get(name, {}), **section} if isinstance(section, Mapping) else section
        data[name] = merged
    return data


def tiny_task(folder: Path, **sections: Any) -> TaskFile:
    """Return the validated task of :func:`tiny_data`."""
    return task_from_mapping(tiny_data(**sections), base_directory=folder)


Outcome = dict[str, Any]


def outcome_of(run: Path) -> Outcome:
    """Return everything of a finished run that must not depend on how it got there.

    Adapter files by their SHA-256, every loss and norm as its exact decimal text, decisions in their order with their
    numbers. Times, slots and tokens per second are left out.
    """
    with RunReader.open(run / "run.db") as reader:
        steps = {
            (step.trial_id, step.step): tuple(map(repr, (step.loss, step.grad_norm, step.learning_rate)))
            for trial in reader.trials()
            for step in reader.log.steps(trial.trial_id)
        }
        evaluations = {
            (found.trial_id, found.step): (repr(found.validation_loss), json.dumps(dict(found.metrics)))
            for trial in reader.trials()
            for found in reader.log.evaluations(trial.trial_id)
        }
        decisions = [
            # who decided and when is in the message of a person's decision
            json.dumps({**entry.decision.to_json(), "message": ""}, sort_keys=True)
            for entry in reader.log.entries()
            if isinstance(entry, LoggedDecision)
        ]
        best = reader.facts().best_trial_id
    adapters = {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("**/adapter_model.safetensors"))
    }
    return {"steps": steps, "evaluations": evaluations, "decisions": decisions, "best": best, "adapters": adapters}


class Interrupting:
    """A watcher that presses Ctrl-C once the trials have done ``steps`` steps together; keeps the notes."""

    def __init__(self, steps: int | None = None) -> None:
        self.steps = steps
        self.notes: list[str] = []

    def update(self, progress: RunProgress) -> None:
        done = sum(trial.steps_done for trial in progress.trials)
        if self.steps is not None and progress.phase == "training" and done >= self.steps:
            self.steps = None
            signal.raise_signal(signal.SIGINT)

    def note(self, text: str) -> None:
        self.notes.append(text)


class TickingClock(ManualClock):
    """A second passes each time somebody looks, so that every step is told to watchers and every request is seen."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


class Asking:
    """A watcher that asks something of the trials once they have done so many steps together; keeps the notes."""

    def __init__(self, run: Path, asks: Sequence[tuple[int, Mapping[str, Any]]], *, dies_at: int | None = None) -> None:
        self.run, self._asks, self._dies_at = run, list(asks), dies_at
        self.asked: list[tuple[int, str]] = []
        self.notes: list[str] = []

    def update(self, progress: RunProgress) -> None:
        done = sum(trial.steps_done for trial in progress.trials)
        if progress.phase != "training":
            return
        while self._asks and done >= self._asks[0][0]:
            what = self._asks.pop(0)[1]
            # one process, so that nothing answers while we wait
            ask(self.run, TrialRequest(**{**what, "kind": RequestKind(what["kind"])}), wait_seconds=0)
            self.asked.append((done, what["kind"]))
        if self._dies_at is not None and done >= self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, text: str) -> None:
        self.notes.append(text)
