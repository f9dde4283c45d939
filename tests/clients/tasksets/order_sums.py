"""A taskset of verifiers with one turn: the answer must be the sum of an order."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["OrderSumsTaskset"]


class OrderData(vf.TaskData):
    """One order."""

    total: int


class OrderTask(vf.Task[OrderData]):
    """Scored by the last word of the answer."""

    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.split()[-1:] == [str(self.data.total)])


class OrderConfig(vf.TasksetConfig):
    """How many orders there are."""

    num_tasks: int = 3


class OrderSumsTaskset(vf.Taskset[OrderTask, OrderConfig]):
    """Orders of jams and teas."""

    def load(self) -> list[OrderTask]:
        return [
            OrderTask(OrderData(prompt=f"Sum: {jams} + {2 * jams} =", total=3 * jams), self.config.task)
            for jams in range(1, self.config.num_tasks + 1)
        ]
