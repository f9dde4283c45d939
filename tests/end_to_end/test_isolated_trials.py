"""32 trials, one of which goes wrong at a random step: the other 31 have the bits of a run in which nothing did."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cohort.core.events import StepDone
from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from cohort.training.executor import Executor
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs

STEPS = 5
# all trials train to the end, so that no decision about one depends on another
SECTIONS: dict[str, Any] = {
    "training": {"max_steps": STEPS},
    "evaluation": {"max_examples": 2, "every_fraction": 0.5, "warmup_evaluations": 1},
    "search": {
        "space": {
            "learning_rate": [1e-3, 3e-3, 1e-2, 3e-2],
            "r": [2, 4],
            "batch_size": [1, 2],
            "lora_dropout": [0, 0.1],
        }
    },
    "early_exit": {"rule": "none"},
}

ACCIDENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda weights_rD: weights_rD[0, 0].fill_(float("nan")),
    "infinity": lambda weights_rD: weights_rD[-1].fill_(float("inf")),
    "spike": lambda weights_rD: weights_rD.mul_(300.0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    tune(tiny_task(folder, **SECTIONS), folder / "undisturbed")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    return outcome_of(folder / "undisturbed")


def without(outcome: Outcome, victim: int) -> Outcome:
    """Leave one trial out of an outcome, and the choice of the best, which it may have been."""
    steps, evaluations = (
        {key: value for key, value in outcome[name].items() if key[0] != victim} for name in ("steps", "evaluations")
    )
    return {
        "steps": steps,
        "evaluations": evaluations,
        "decisions": [text for text in outcome["decisions"] if json.loads(text)["trial_id"] != victim],
        "adapters": {
            name: value
            for name, value in outcome["adapters"].items()
            if name.startswith("trials/") and not name.startswith(f"trials/{victim:04d}/")
        },
    }


@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_what_befalls_one_trial_changes_no_bit_of_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome, accident: str, seed: int
) -> None:
    draw = random.Random(f"{accident} {seed}")
    victim, at_step = draw.randrange(32), draw.randrange(STEPS)
    step = Executor.step

    def step_with_accident(self: Executor, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        if victim in self.resident and self.steps_of(victim) == at_step:
            ACCIDENTS[accident](self.bank.weights_RD[self.bank.rank_rows(self.slot_of(victim))])
        return step(self, trial_ids)

    monkeypatch.setattr(Executor, "step", step_with_accident)
    tune(tiny_task(folder, **SECTIONS), tmp_path / "run")
    found = outcome_of(tmp_path / "run")
    assert len(expected["steps"]) == 32 * STEPS
    assert without(found, victim) == without(expected, victim)
    own = {key: value for key, value in found["steps"].items() if key[0] == victim}
    assert own != {key: value for key, value in expected["steps"].items() if key[0] == victim}
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        trial = reader.trial(victim)
    assert trial.reason == ("completed" if accident == "spike" else "non-finite"), trial
