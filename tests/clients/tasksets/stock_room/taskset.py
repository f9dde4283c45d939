"""Questions that only the tool can answer."""

from __future__ import annotations

import verifiers.v1 as vf

from stock_room.tool import STOCK, StockToolset


class StockData(vf.TaskData):
    """A question about one item."""

    item: str


class StockTaskConfig(vf.TaskConfig):
    """Where the tool runs."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class StockTask(vf.Task[StockData, vf.State, StockTaskConfig]):
    """Scored by the answer, and by whether the tool was asked for it."""

    @classmethod
    def toolsets(cls, config: StockTaskConfig) -> list[vf.Toolset]:
        return [StockToolset(config.tools)]

    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(str(STOCK[self.data.item]) in trace.last_reply)

    @vf.reward(weight=0.5)
    async def has_asked(self, trace: vf.Trace) -> float:
        return float(bool(trace.tool_messages))


class StockConfig(vf.TasksetConfig):
    """What its tasks read."""

    task: StockTaskConfig = StockTaskConfig()


class StockRoomTaskset(vf.Taskset[StockTask, StockConfig]):
    """A question for each item."""

    def load(self) -> list[StockTask]:
        return [
            StockTask(StockData(prompt=f"How many {item} are in stock?", item=item), self.config.task)
            for item in sorted(STOCK)
        ]
