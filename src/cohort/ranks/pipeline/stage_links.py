"""Messages between the stages of a pipeline through torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cohort.scheduling.pipelines.pipeline_schedule import Direction

__all__ = ["DistributedLinks", "StageLinks"]


class StageLinks(Protocol):
    """Messages between stages. Sends do not wait; receives wait for their message.

    ``number`` is that of the micro-batch; both ends know the shapes.
    """

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None: ...
    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor: ...
    def flush(self) -> None:
        """Wait until everything that was sent has left."""
        ...


class DistributedLinks:
    """Satisfies :class:`StageLinks`; ranks of the process group are stages.

    NCCL knows no tags: there messages of one direction between two stages arrive in the order they were sent, which is
    the order of the stages' passes. Each direction has a communicator, and so have the rows of a shared head, so that
    none waits for another.
    """

    def __init__(self, *, stage: int, num_stages: int, device: torch.device, shares_head: bool = False) -> None:
        """Connect this stage with its neighbours, and with the last one to share the head; all do so together."""
        self._stage, self._device = stage, device
        # training has fewer under way: a stage is at most this many micro-batches ahead; an evaluation has no such end
        self._most_sent = 6 * num_stages + 12
        # a send reads its tensor until it has left
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._groups: dict[tuple[int, int, bool], dist.ProcessGroup] = {}
        if device.type != "cuda":
            return
        for link in _links(num_stages, shares_head=shares_head):
            # every rank takes part in making every group
            group = dist.new_group(sorted(link[:2]))
            if stage in link[:2]:
                assert isinstance(group, dist.ProcessGroup), "members get the group"
                self._groups[link] = group
        for (sender, receiver, _), group in self._groups.items():
            # NCCL connects two ranks at their first message
            if stage == sender:
                dist.send(torch.zeros(1, device=device), dst=receiver, group=group)
            else:
                dist.recv(torch.zeros(1, device=device), src=sender, group=group)
        torch.cuda.synchronize(device)

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None:
        self._sent = [(work, kept) for work, kept in self._sent if not work.is_completed()]
        if len(self._sent) >= self._most_sent:
            # what waits to be received takes memory
            self._sent.pop(0)[0].wait()
        kept = message.contiguous()
        group = self._groups.get((self._stage, to, direction is Direction.HEAD))
        work = dist.isend(kept, dst=to, tag=self._tag(number, direction), group=group)
        assert work is not None, "both stages are in the group"
        self._sent.append((work, kept))

    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor:
        tag, group = self._tag(number, direction), self._groups.get((sender, self._stage, direction is Direction.HEAD))
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


def _links(num_stages: int, *, shares_head: bool) -> list[tuple[int, int, bool]]:
    """Return sender and receiver of each link, and whether it is the head's; in this order they can connect."""
    last = num_stages - 1
    pairs = [pair for stage in range(last) for pair in ((stage, stage + 1), (stage + 1, stage))]
    of_head = [pair for stage in range(last) for pair in ((last, stage), (stage, last))] if shares_head else []
    return [*((*pair, False) for pair in pairs), *((*pair, True) for pair in of_head)]


def _tag(number: int, direction: Direction) -> int:
    """Return a number of its own for each message of a window; norms, squares and losses have negative numbers."""
    is_small = number < 0
    place = (Direction.FORWARD, Direction.BACKWARD, Direction.HEAD).index(direction)
    return 6 * (-1 - number if is_small else number) + 3 * is_small + place
