"""A taskset of verifiers with a tool: what is in stock is known to it alone."""

from stock_room.taskset import StockRoomTaskset

__all__ = ["StockRoomTaskset"]
