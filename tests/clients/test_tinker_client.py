"""The unmodified ``tinker`` package drives training and sampling on a server of this checkout."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.client_runs import needs_clients, run_script


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the client's loops reached."""
    return run_script("tinker_loops.py", folder=tmp_path_factory.mktemp("clients"), served_as="base")


@needs_clients
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
