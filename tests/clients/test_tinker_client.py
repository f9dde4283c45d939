"""The unmodified ``tinker`` package drives training and sampling on a server of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cohort.service.settings import ServedSettings
from tests.conftest import REPOSITORY
from tests.service.running_server import running

PYTHON = Path(os.environ.get("COHORT_CLIENTS_PYTHON", REPOSITORY / ".venv-clients" / "bin" / "python"))
HAS_CLIENTS = PYTHON.is_file()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the client's loops reached."""
    folder = tmp_path_factory.mktemp("clients")
    # a model that was trained: one of random weights hardly learns
    model = REPOSITORY / "examples" / "quickstart" / "base_model"
    served = ServedSettings(model=str(model), names=("base",), gpus=0, tinker=folder / "tinker")
    with running(served) as server:
        script = Path(__file__).with_name("tinker_loops.py")
        environment = {**os.environ, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0", "PYTHONPATH": ""}
        done = subprocess.run(
            [str(PYTHON), str(script), server.url], env=environment, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    result: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return result


@pytest.mark.skipif(not HAS_CLIENTS, reason="no environment with the tinker package: run make test-clients")
class TestUnmodifiedClient:
    """One run of its loops."""

    def test_its_supervised_loop_learns_and_goes_on_from_a_checkpoint_with_the_same_bits(
        self, found: dict[str, Any]
    ) -> None:
        supervised = found["supervised"]
        assert supervised["losses"][-1] < supervised["losses"][0]
        one, other = supervised["next"]
        assert one == other
        assert supervised["path"].startswith("tinker://")

    def test_its_reinforcement_loop_is_rewarded_more_and_more(self, found: dict[str, Any]) -> None:
        rewards = found["rewards"]
        assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1

    def test_a_wrong_call_is_told_what_is_wrong(self, found: dict[str, Any]) -> None:
        assert "data[0].loss_fn_inputs.weights: found nan at position 1; allowed: finite numbers" in found["refused"]
