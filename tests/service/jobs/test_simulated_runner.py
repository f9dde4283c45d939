"""The service's own runner, store and queue under all that fails, on a simulated clock: one seed is one history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.service_simulation.history import play
from tests.support.service_simulation.runner_nodes import pretended_training, runner_nodes

# a client resumed a job while its node was about to write that it is paused: the runner dropped all its jobs
SEEDS_THAT_FAILED = (23,)


def play_with_runners(seed: int, folder: Path) -> str:
    with pretended_training():
        return play(seed, folder, make_nodes=runner_nodes)


@pytest.mark.parametrize("seed", [*range(3), *SEEDS_THAT_FAILED])
def test_nothing_accepted_is_lost_or_done_twice(seed: int, tmp_path: Path) -> None:
    play_with_runners(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_a_thousand_histories(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        play_with_runners(seed, tmp_path / str(seed))


def test_a_seed_is_a_history_byte_for_byte(tmp_path: Path) -> None:
    assert play_with_runners(3, tmp_path / "first") == play_with_runners(3, tmp_path / "again")
