"""Eight trials that train on their own answers: alone, packed, and killed three times, the same bits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.stopped.killing import Killing
from tests.end_to_end.tiny_tasks import outcome_of, write_inputs

REWARD = "def low_letters(completions, **_):\n    return [sum(x < 'm' for x in text) / 6 for text in completions]\n"
# group sizes, lengths and ranks; the trials are numbered as the grid is
SIZES = [{"num_generations": n, "max_completion_length": m, "r": r} for n in (2, 5) for m in (3, 9) for r in (2, 8)]


def sections(**space: Any) -> dict[str, Any]:
    return {
        "objective": {"type": "grpo", "beta": 0.01},
        "rewards": {"functions": ["my_rewards.py:low_letters"], "workers": 1},
        "lora": {"lora_dropout": 0.0},
        "training": {"max_steps": 5, "learning_rate": 1e-2},
        "search": {"sampler": "grid", "space": space},
        "early_exit": {"rule": "none"},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("drawn"))
    (folder / "my_rewards.py").write_text(REWARD)
    return folder


def best_files(run: Path) -> list[str]:
    """Return the SHA-256 of each trial's best weights, in the order of the trials."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(run.glob("trials/*/best-*.safetensors"))]


@pytest.mark.slow
def test_eight_trials_alone_packed_and_killed_three_times(fork_server: ForkServer, folder: Path) -> None:
    packed = sections(num_generations=[2, 5], max_completion_length=[3, 9], r=[2, 8])
    # which trial has its rewards first is for the clock to say, and the decisions stand in that order
    killing = Killing(fork_server, folder, packed, names=("steps", "evaluations", "best", "adapters"))
    run = folder / "killed"
    for share in (0.5, 0.4, 0.3):
        killing.go_on(run, kill_after=share * killing.seconds)
    assert killing.go_on(run) == 0
    killing.assert_same(run)
    assert best_files(run) == best_files(folder / "undisturbed")
    steps = killing.expected["steps"]
    for trial_id, sizes in enumerate(SIZES):
        alone = folder / f"alone{trial_id}"
        own = sections(**{name: [value] for name, value in sizes.items()})
        assert fork_server.run({"folder": str(folder), "sections": own, "act": "tune", "run": str(alone)}) == 0
        expected = {step: value for (trial, step), value in steps.items() if trial == trial_id}
        assert {step: value for (_, step), value in outcome_of(alone)["steps"].items()} == expected
        assert best_files(alone) == [best_files(run)[trial_id]]
