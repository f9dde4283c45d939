"""The tool server of the stock room, a process of its own."""

from __future__ import annotations

import verifiers.v1 as vf

STOCK = {"lamps": 17, "chairs": 4}


class StockToolset(vf.Toolset[vf.ToolsetConfig]):
    """Counts what is there."""

    TOOL_PREFIX = None

    @vf.tool
    def count(self, item: str) -> str:
        """Return how many of an item there are."""
        return str(STOCK[item])


if __name__ == "__main__":
    StockToolset.run()
