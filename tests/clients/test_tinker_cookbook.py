"""The unmodified loops of ``tinker_cookbook`` run on a server of this checkout, with a model and data of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.clients.client_runs import MODEL, needs_clients, run_script


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the cookbook's loops reached."""
    folder = tmp_path_factory.mktemp("cookbook")
    # the cookbook reads the tokenizer of the folder that it takes for the model's name
    return run_script("cookbook_loops.py", str(MODEL), str(folder), folder=folder, served_as=str(MODEL))


@needs_clients
class TestUnmodifiedCookbook:
    """One run of its loops, each from what the supervised one saved."""

    def test_the_supervised_loop_learns(self, found: dict[str, Any]) -> None:
        supervised = found["supervised"]
        assert supervised["losses"][-1] < supervised["losses"][0] / 4
        # evaluated by a version of its own each time
        assert len(supervised["tests"]) == 3
        assert supervised["tests"][-1] < supervised["tests"][0] / 4

    def test_a_loop_that_was_cut_off_resumes_with_the_same_bits(self, found: dict[str, Any]) -> None:
        resumed = found["resumed"]
        assert resumed["steps"] == [*range(10), *range(8, 12)]
        assert resumed["losses"] == resumed["plain"]

    def test_the_preference_recipe_prefers_what_it_is_shown(self, found: dict[str, Any]) -> None:
        preferred = found["preferred"]
        # the version of the beginning is the reference of all steps: at first both are the same
        assert preferred["dpo_loss"][0] == pytest.approx(math.log(2), abs=1e-5)
        assert sum(preferred["dpo_loss"][-4:]) / 4 < 0.65
        assert sum(preferred["margin"][-4:]) / 4 > 0.1
        assert sum(preferred["accuracy"][-4:]) / 4 > 0.5

    def test_the_reinforcement_loop_is_rewarded_more_over_thirty_steps(self, found: dict[str, Any]) -> None:
        rewards = found["reinforced"]["rewards"]
        assert len(rewards) == 30
        tens = [sum(rewards[start : start + 10]) / 10 for start in (0, 10, 20)]
        assert tens[0] < tens[1] < tens[2]
        assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2

    def test_what_the_loop_deletes_is_gone_and_what_it_keeps_is_listed(self, found: dict[str, Any]) -> None:
        names = ["000015", "000030", "final"]
        wanted = [f"{kind}/{name}" for kind in ("sampler_weights", "weights") for name in names]
        assert found["reinforced"]["kept"] == wanted
