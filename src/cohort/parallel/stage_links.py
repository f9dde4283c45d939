"""Messages between the stages of a pipeline through torch.distributed: gloo on CPUs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from cohort.scheduling.pipeline.stage_order import Direction

__all__ = ["DistributedLinks"]


class DistributedLinks:
    """Satisfies :class:`~cohort.parallel.pipeline_stage.StageLinks`; ranks of the process group are the stages."""

    def __init__(self) -> None:
        # a send reads its tensor until it has left
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None:
        self._sent = [(work, kept) for work, kept in self._sent if not work.is_completed()]
        kept = message.contiguous()
        work = dist.isend(kept, dst=to, tag=_tag(number, direction))
        assert work is not None, "both stages are in the group"
        self._sent.append((work, kept))

    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor:
        dist.recv(into, src=sender, tag=_tag(number, direction))
        return into

    def flush(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _tag(number: int, direction: Direction) -> int:
    """Return a number of its own for each message of a window; norms and squares have negative numbers."""
    is_small = number < 0
    return 4 * (-1 - number if is_small else number) + 2 * is_small + (direction is Direction.BACKWARD)
