"""Messages between the stages of a pipeline through torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from cohort.pipelining.stage_order import Direction

__all__ = ["DistributedLinks"]


class DistributedLinks:
    """Satisfies :class:`~cohort.parallel.pipeline.pipeline_stage.StageLinks`; ranks of the process group are stages.

    NCCL knows no tags: there messages of one direction between two stages arrive in the order they were sent, which is
    the order of the stages' passes. Each direction has a communicator, so that neither waits for the other.
    """

    def __init__(self, *, stage: int, num_stages: int, device: torch.device) -> None:
        """Connect this stage with its neighbours; all stages do so together."""
        self._stage, self._device = stage, device
        # training has fewer under way: a stage is at most this many micro-batches ahead; an evaluation has no such end
        self._most_sent = 4 * num_stages + 8
        # a send reads its tensor until it has left
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._groups: dict[tuple[int, int], dist.ProcessGroup] = {}
        if device.type != "cuda":
            return
        for pair in _pairs(num_stages):
            # every rank takes part in making every group
            group = dist.new_group(sorted(pair))
            if stage in pair:
                assert isinstance(group, dist.ProcessGroup), "members get the group"
                self._groups[pair] = group
        for pair, group in self._groups.items():
            # NCCL connects two ranks at their first message
            if stage == pair[0]:
                dist.send(torch.zeros(1, device=device), dst=pair[1], group=group)
            else:
                dist.recv(torch.zeros(1, device=device), src=pair[0], group=group)
        torch.cuda.synchronize(device)

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None:
        self._sent = [(work, kept) for work, kept in self._sent if not work.is_completed()]
        if len(self._sent) >= self._most_sent:
            # what waits to be received takes memory
            self._sent.pop(0)[0].wait()
        kept = message.contiguous()
        work = dist.isend(kept, dst=to, tag=self._tag(number, direction), group=self._groups.get((self._stage, to)))
        assert work is not None, "both stages are in the group"
        self._sent.append((work, kept))

    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor:
        tag, group = self._tag(number, direction), self._groups.get((sender, self._stage))
        dist.recv(into, src=sender, tag=tag, group=group)
        return into

    def flush(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _tag(self, number: int, direction: Direction) -> int:
        return 0 if self._groups else _tag(number, direction)


def _pairs(num_stages: int) -> list[tuple[int, int]]:
    """Return sender and receiver of each link, in an order in which neighbours can connect one after another."""
    return [pair for stage in range(num_stages - 1) for pair in ((stage, stage + 1), (stage + 1, stage))]


def _tag(number: int, direction: Direction) -> int:
    """Return a number of its own for each message of a window; norms and squares have negative numbers."""
    is_small = number < 0
    return 4 * (-1 - number if is_small else number) + 2 * is_small + (direction is Direction.BACKWARD)
