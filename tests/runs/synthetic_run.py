"""Runs that never trained: curves from a formula, real records; for tests and for looking at reports."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, ReadAnswer, StepDone
from cohort.runs.fact_groups import InputFacts, MachineFacts, RunPlaces, SizeFacts, TaskFacts
from cohort.runs.facts import Activity, RunState
from cohort.runs.records import DataProblem, JsonValue, TrialRecord
from cohort.runs.store import FactUpdates, RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

__all__ = ["SyntheticRun", "new_best", "write_synthetic_run"]

FACTS: FactUpdates = {
    "task_name": "gsm8k",
    "state": RunState.DONE,
    "places": RunPlaces(base_model="meta-llama/Llama-3.2-1B"),
    "task": TaskFacts(
        document={
            "lora": {"r": 16, "lora_alpha": 32.0},
            "search": {
                "space": {
                    "learning_rate": [1e-5, 5e-5, 2e-4, 5e-4, 3e-3],
                    "r": [16, 32, 64],
                    "lora_alpha": "2r",
                    "batch_size": [1, 2, 4, 8],
                }
            },
        },
        default_trial_id=0,
        warmup_fraction=0.05,
    ),
    "sizes": SizeFacts(num_slots=8),
    "machine": MachineFacts(
        backend="torch (per sample)",
        precision="float32",
        attention="sdpa",
        device="cpu",
        threads=2,
        versions={"cohort": "0.1.0", "torch": "2.13.0", "transformers": "5.17.0"},
    ),
    "seconds": {Activity.TOKENISE: 0.4, Activity.LOAD: 0.2, Activity.TRAIN: 18.0, Activity.EVALUATE: 4.6},
    "inputs": InputFacts(
        data_hash="9f2c" * 16,
        model_hash="17ab" * 16,
        data_counts={"train rows": 934, "validation rows": 64, "too_long": 11, "duplicate": 2},
        data_problems=(
            DataProblem(
                where="train.jsonl:17",
                found="1,204 tokens",
                allowed="at most 1,024 (max_length)",
                hint="Raise max_length, or leave the row out as now.",
            ),
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class SyntheticRun:
    """What to make: ``trials`` configurations of ``steps`` steps through ``slots`` slots.

    Attributes:
        draws_answers: Whether steps report rewards and answers, as trials do that train on their own.
    """

    trials: int = 60
    steps: int = 200
    slots: int = 8
    seed: int = 0
    metric: ObjectiveMetric = LOSS
    finished: bool = True
    draws_answers: bool = False


def new_best(evaluated: Evaluated, *, metric: ObjectiveMetric = LOSS) -> Decision:
    """Return what a study decides of an evaluation that is the trial's best so far."""
    value = metric.read(evaluated)
    assert value is not None
    return Decision(
        trial_id=evaluated.trial_id,
        step=evaluated.step,
        kind=DecisionKind.NEW_BEST,
        reason=Reason("improved"),
        rule="study",
        numbers={metric.name: value, "validation_loss": evaluated.validation_loss},
    )


def _parameters(number: int) -> dict[str, JsonValue]:
    grid = list(itertools.product((1e-5, 5e-5, 2e-4, 5e-4, 3e-3), (16, 32, 64), (1, 2, 4, 8)))
    rate, r, batch_size = grid[number * 7 % len(grid)]
    return {"learning_rate": rate, "r": r, "lora_alpha": 2 * r, "batch_size": batch_size, "lora_dropout": 0.0}


def _drawn(trial: int, step: int, loss: float) -> dict[str, Any]:
    reward = max(0.0, 1.0 - loss / 4) if math.isfinite(loss) else 0.0
    metrics = {
        "reward": reward,
        "entropy": 2.0 * math.exp(-step / 60),
        "answer_length": 40.0 - 20.0 * reward,
        "kl": 0.001 * step,
        "clip_share": 0.0,
        "groups_alike": reward / 2,
        "sampler_difference": 1e-6,
    }
    prompt, text = f"What is {trial} + {step}?", f"It is {trial + step}.\nI am sure."
    answers = (ReadAnswer(prompt=prompt, text=text, reward=1.0), ReadAnswer(prompt=prompt, text="No.", reward=math.nan))
    return {"metrics": metrics, "answers": answers}


class _Writer:
    def __init__(self, path: Path, plan: SyntheticRun) -> None:
        self.plan = plan
        self.clock = ManualClock()
        self.store = RunStore.create(path, metric=plan.metric, clock=self.clock)
        self.random = np.random.default_rng(plan.seed)
        self.warmup = max(3, math.ceil(plan.steps * 0.05))
        self.best: dict[int, float] = {}
        self.costs: dict[int, float] = {}

    def run(self) -> None:
        plan, store = self.plan, self.store
        store.set_facts(**FACTS)
        store.set_facts(base_metrics={"loss": 3.6, "exact_match": 0.01})
        store.add_trials(
            [
                TrialRecord(
                    trial_id=number,
                    parameters=_parameters(number),
                    planned_steps=plan.steps,
                    planned_tokens=plan.steps * 96 * int(str(_parameters(number)["batch_size"])),
                    seed=number,
                )
                for number in range(plan.trials)
            ]
        )
        parked = []
        for first in range(0, plan.trials, plan.slots):
            group = list(range(first, min(first + plan.slots, plan.trials)))
            parked += self._train(group, start=0, stop=self.warmup, park=True)
        kept = sorted(parked, key=lambda trial: self.best[trial])[: math.ceil(len(parked) / 4)]
        for rank, trial in enumerate(sorted(parked, key=lambda trial: self.best[trial]), start=1):
            kind, reason = (
                (DecisionKind.KEEP, Reason("selected"))
                if trial in kept
                else (
                    DecisionKind.STOP,
                    Reason("underperforming"),
                )
            )
            numbers = {"rank": float(rank), "kept": float(len(kept)), "validation_loss": self.best[trial]}
            self._decide(trial, self.warmup, kind, reason, "patterns", numbers)
        for first in range(0, len(kept), plan.slots):
            stop = plan.steps if plan.finished else plan.steps // 2
            self._train(kept[first : first + plan.slots], start=self.warmup, stop=stop, park=False)
        if plan.finished:
            best = min(self.best, key=lambda trial: self.best[trial])
            store.set_facts(best_trial_id=best)
        else:
            store.set_facts(state=RunState.RUNNING)
        store.close()

    def _decide(
        self, trial: int, step: int, kind: DecisionKind, reason: Reason, rule: str, numbers: dict[str, float]
    ) -> None:
        self.store.append(
            [], [Decision(trial_id=trial, step=step, kind=kind, reason=reason, rule=rule, numbers=numbers)]
        )

    def _loss(self, trial: int, step: int) -> tuple[float, float]:
        """Train and validation loss: worse the further the rate is from 3e-4; the largest diverges."""
        parameters = _parameters(trial)
        rate = float(str(parameters["learning_rate"]))
        if rate > 1e-3 and trial % 2 and step > 4:
            return (math.nan, math.nan) if trial % 4 == 3 and step > 8 else (3.0 + 0.12 * step, 3.1 + 0.13 * step)
        miss = abs(math.log10(rate / 3e-4))
        floor = 1.1 + 0.5 * miss - 0.001 * int(str(parameters["r"])) + 0.03 * int(str(parameters["batch_size"]))
        speed = 14 * (1 + miss)
        value = floor + (3.6 - floor) * math.exp(-step / speed)
        noise = 0.15 / math.sqrt(int(str(parameters["batch_size"])))
        overfit = 0.004 * max(0, step - 60) if int(str(parameters["r"])) == 64 and rate > 3e-4 else 0.0
        return value + noise * self.random.standard_normal() - overfit, value + 0.05 + overfit

    def _train(self, group: list[int], *, start: int, stop: int, park: bool) -> list[int]:
        store, live = self.store, list(group)
        for slot, trial in enumerate(group):
            store.trial_entered(trial, slot=slot)
        every = max(1, self.plan.steps // 20)
        for step in range(start + 1, stop + 1):
            self.clock.advance(0.05)
            losses = {trial: self._loss(trial, step) for trial in live}
            events: list[StepDone | Evaluated] = [
                StepDone(
                    trial_id=trial,
                    step=step,
                    loss=losses[trial][0],
                    grad_norm=0.5,
                    learning_rate=float(str(_parameters(trial)["learning_rate"])),
                    num_tokens=96 * int(str(_parameters(trial)["batch_size"])),
                    **(_drawn(trial, step, losses[trial][0]) if self.plan.draws_answers else {}),
                )
                for trial in live
            ]
            evaluated = [] if step % every and step not in (1, self.warmup // 2, self.warmup, stop) else list(live)
            for trial in evaluated:
                accuracy = max(0.0, 1.1 - 0.35 * losses[trial][1]) if math.isfinite(losses[trial][1]) else 0.0
                events.append(
                    Evaluated(
                        trial_id=trial,
                        step=step,
                        validation_loss=losses[trial][1],
                        metrics={"exact_match": accuracy},
                        num_tokens=600,
                    )
                )
            found = [event for event in events if isinstance(event, Evaluated)]
            store.append(events, [new_best(event, metric=self.plan.metric) for event in found if self._improves(event)])
            for trial in list(live):
                if self._stop_early(trial, step, *losses[trial], evaluated=trial in evaluated):
                    live.remove(trial)
        for trial in live:
            kind, reason = (
                (DecisionKind.PARK, Reason("warmed up")) if park else (DecisionKind.FINISH, Reason("completed"))
            )
            if park or stop == self.plan.steps:
                self._decide(trial, stop, kind, reason, "patterns", {})
                store.trial_left(trial)
        return live

    def _improves(self, event: Evaluated) -> bool:
        value = self.plan.metric.read(event)
        if value is None or not math.isfinite(value) or not math.isfinite(event.validation_loss):
            return False
        cost = self.plan.metric.cost(value)
        before = self.costs.get(event.trial_id, math.inf)
        self.costs[event.trial_id] = min(cost, before)
        return cost < before

    def _stop_early(self, trial: int, step: int, loss: float, validation: float, *, evaluated: bool) -> bool:
        if evaluated and math.isfinite(validation):
            self.best[trial] = min(validation, self.best.get(trial, math.inf))
        reason = None
        if not math.isfinite(loss):
            reason, numbers = Reason("non-finite"), {"loss": loss}
        elif evaluated and loss > 3.8:
            reason, numbers = Reason("diverging"), {"train_slope": 0.12, "validation_slope": 0.13, "threshold": 0.001}
        elif evaluated and step > 100 and validation - loss > 0.45:
            reason, numbers = Reason("overfitting"), {"gap": validation - loss, "threshold": 0.1}
        if reason is None:
            return False
        self._decide(trial, step, DecisionKind.STOP, reason, "patterns", numbers)
        self.store.trial_left(trial)
        return True


def write_synthetic_run(path: Path, plan: SyntheticRun | None = None) -> Path:
    """Write a run database to ``path`` and return it."""
    _Writer(path, plan or SyntheticRun()).run()
    return path
