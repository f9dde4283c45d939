"""What the modules of a bridged model read during a pass: a module's call has no argument for it.

Kept in a context variable, so that passes of two threads, and a layer that is computed again in a backward pass, each
see their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

from cohort.adapters.linear import LoraContext
from cohort.models.attention import PackedAttention
from cohort.models.bridge.sequence_bounds import SequenceBounds

__all__ = ["BridgedPass", "current_pass", "during"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BridgedPass:
    """One call of a bridged model.

    Attributes:
        lora: The adapters of its rows; None for the frozen model.
        attention: How the rows of a packed stream attend; None where the model sees one sequence.
        wants_gradient: Whether the token rows require a gradient.
        recomputes: Whether layers keep their input alone.
        uses_own_experts: Whether blocks of experts compute as transformers lets them; the probe compares with it.
        rows_seen: By adaptable linear, the rows of each of its calls; filled where it is given.
    """

    lora: LoraContext | None = None
    attention: PackedAttention | None = None
    wants_gradient: bool = False
    recomputes: bool = False
    uses_own_experts: bool = False
    rows_seen: dict[str, list[int]] | None = field(default=None)

    @cached_property
    def sequence_bounds(self) -> SequenceBounds | None:
        """Where the sequences of a packed stream are; None where it has one, which nothing can leak into.

        A cache may then put rows of its own before those of the stream.
        """
        ends = () if self.attention is None else tuple(self.attention.sequence_offsets)
        return SequenceBounds(ends=ends) if len(set(ends)) > 2 else None


_CURRENT: ContextVar[BridgedPass | None] = ContextVar("bridged_pass", default=None)


def current_pass() -> BridgedPass | None:
    return _CURRENT.get()


@contextmanager
def during(found: BridgedPass) -> Iterator[None]:
    """Let modules see ``found`` within the block."""
    token = _CURRENT.set(found)
    try:
        yield
    finally:
        _CURRENT.reset(token)
