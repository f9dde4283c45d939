"""Pretrained models that transformers computes: a sweep betters the base, and a killed one ends with the same bits.

A hybrid of the gated delta rule and attention, and a mixture whose experts are adapted as well.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from tests.end_to_end.base_models.pretrained import write_pretrained
from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import outcome_of

LORA: dict[str, Any] = {"target_modules": "all-linear", "lora_dropout": 0.0}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SHORT: dict[str, Any] = {
    "lora": LORA,
    "training": {"max_steps": 6, "batch_size": 2},
    "search": {"space": {"learning_rate": [3e-3, 1e-2], "r": [4]}},
}
LONG: dict[str, Any] = {
    "lora": LORA,
    "training": {"max_steps": 30, "batch_size": 4},
    "search": {"space": {"learning_rate": [3e-3, 1e-2], "r": [4, 8]}},
}


def values_of(run: Path) -> tuple[float, float]:
    """Return the validation losses of the base model and of the best adapter."""
    with RunReader.open(run / "run.db") as reader:
        facts = reader.facts()
    assert facts.finals is not None
    assert facts.finals.base is not None
    assert facts.best_trial_id is not None
    best = facts.finals.of_trial(facts.best_trial_id)
    assert best is not None
    return facts.finals.base.values["loss"].value, best.values["loss"].value


def act_on(run: Path) -> str:
    # a run may be killed before it has a database
    return "resume" if RunDirectory(run).holds_run() else "tune"


def sweep(server: ForkServer, folder: Path, sections: dict[str, Any], *, shares: list[float]) -> tuple[float, float]:
    """Run a task undisturbed and killed at shares of that time; require the same outcome, and return both losses."""
    command = {"folder": str(folder), "sections": sections}
    began = time.monotonic()
    assert server.run({**command, "act": "tune", "run": str(folder / "whole")}) == 0
    seconds = time.monotonic() - began
    killed, statuses = folder / "killed", []
    for share in shares:
        statuses.append(server.run({**command, "act": act_on(killed), "run": str(killed)}, kill_after=share * seconds))
    assert -signal.SIGKILL in statuses
    if statuses[-1] != 0:
        assert server.run({**command, "act": act_on(killed), "run": str(killed)}) == 0
    assert outcome_of(killed) == outcome_of(folder / "whole")
    return values_of(folder / "whole")


def test_a_short_sweep_on_a_hybrid(fork_server: ForkServer, tmp_path: Path) -> None:
    folder = write_pretrained(tmp_path / "task", "qwen3_5_text", steps=25, batch_size=8)
    base, best = sweep(fork_server, folder, SHORT, shares=[0.6])
    assert best < base


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora"),
    [("qwen3_5_text", LORA), ("qwen3_moe", LORA), ("qwen3_moe", {**LORA, "target_parameters": EXPERTS})],
)
def test_a_sweep_killed_in_the_middle(fork_server: ForkServer, tmp_path: Path, name: str, lora: dict[str, Any]) -> None:
    folder = write_pretrained(tmp_path / "task", name, steps=200)
    base, best = sweep(fork_server, folder, {**LONG, "lora": lora}, shares=[0.5, 0.3])
    assert best < 0.8 * base, (best, base)
