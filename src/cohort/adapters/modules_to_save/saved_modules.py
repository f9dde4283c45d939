"""Which whole modules an adapter trains a copy of, and where their entries stand in its rank rows.

The copies are further rank rows of the adapter, behind those of its factors: one table after the other, entry by entry.
So what is true of rank rows is true of them: one optimizer step and one norm for all that a trial trains, one state
that is parked, saved and continued, one budget of memory.

Shapes:  V vocabulary · D hidden width · W entries of a rank row
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EMBEDDING", "HEAD", "SAVED_NAMES", "SAVED_PATHS", "SavedModules"]

EMBEDDING, HEAD = "embed_tokens", "lm_head"
SAVED_NAMES = (EMBEDDING, HEAD)
"""What ``modules_to_save`` may name, in the order in which their tables stand."""
SAVED_PATHS = {EMBEDDING: "model.embed_tokens", HEAD: "lm_head"}
"""Full module paths, which PEFT writes."""


@dataclass(frozen=True, kw_only=True)
class SavedModules:
    """The embedding, the head or both, with what their places follow from.

    Attributes:
        names: Of :data:`SAVED_NAMES`, at least one.
        vocab_size: V.
        hidden_size: D.
        width: Entries of a rank row of the bank that has them.
    """

    names: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    width: int

    def __post_init__(self) -> None:
        if not self.names or self.names != tuple(name for name in SAVED_NAMES if name in self.names):
            raise ValueError(f"names must be some of {SAVED_NAMES}, in this order, got {self.names}")

    @property
    def num_table_entries(self) -> int:
        """V x D."""
        return self.vocab_size * self.hidden_size

    @property
    def num_entries(self) -> int:
        """Entries of all tables."""
        return len(self.names) * self.num_table_entries

    @property
    def num_rows(self) -> int:
        """Rank rows that the tables take."""
        return -(-self.num_entries // self.width)

    def in_width(self, width: int) -> SavedModules:
        """Return the same modules in rank rows of ``width`` entries."""
        return replace(self, width=width)

    def table(self, rows_RW: Tensor, name: str) -> Tensor:
        """Return the table [V, D] of a module as a view of the contiguous rank rows of all of them."""
        start = self.names.index(name) * self.num_table_entries
        flat = rows_RW.view(-1)[start : start + self.num_table_entries]
        return flat.view(self.vocab_size, self.hidden_size)
