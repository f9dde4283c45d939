"""What torchrun's variables say of a process."""

from __future__ import annotations

from cohort.ranks.launch.launch_place import LaunchPlace

VARIABLES = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "host-a",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_the_place_of_a_process() -> None:
    assert LaunchPlace.of(VARIABLES) == LaunchPlace(
        rank=3, num_ranks=4, local_rank=1, ranks_here=2, node=1, first_host="host-a", num_restarts=2
    )


def test_other_launchers_start_ordinary_processes() -> None:
    assert LaunchPlace.of({}) is None
    assert LaunchPlace.of({name: VARIABLES[name] for name in ("RANK", "WORLD_SIZE")}) is None
