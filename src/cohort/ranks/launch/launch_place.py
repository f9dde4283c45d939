"""Where a process is among those that torchrun has started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LaunchPlace"]


@dataclass(frozen=True, kw_only=True)
class LaunchPlace:
    """One process of a launch.

    Attributes:
        rank: Among all processes.
        num_ranks: All processes.
        local_rank: Among the processes of its host; also the number of its GPU there.
        ranks_here: Processes of its host.
        node: Number of its host; ranks of one host are numbered in a row.
        first_host: Name or address of the host of rank 0.
        num_restarts: How often torchrun has started all processes again.
    """

    rank: int
    num_ranks: int
    local_rank: int = 0
    ranks_here: int = 1
    node: int = 0
    first_host: str = "localhost"
    num_restarts: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LaunchPlace | None:
        """Return the place that torchrun's variables give; None where torchrun did not start this process."""
        # RANK and WORLD_SIZE alone are set by other launchers, too, which have no store of an agent
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        return cls(
            rank=int(environment["RANK"]),
            num_ranks=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            ranks_here=int(environment["LOCAL_WORLD_SIZE"]),
            node=int(environment["GROUP_RANK"]),
            first_host=environment["MASTER_ADDR"],
            num_restarts=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def node_of_first(self) -> int:
        """The host of rank 0."""
        return 0
