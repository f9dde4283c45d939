"""What a serving engine asks of the other ranks of a divided model, and the answer of one process: nothing.

Rank 0 decides and tells: where adapters are, which pass comes next. All ranks then compute the same pass, each its own
part, and meet in the collectives of its layers.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.serving.pass_record import PassRecord

__all__ = ["AdapterToken", "KeptAdapter", "OneProcess", "ServingRanks"]


@dataclass(frozen=True, eq=False)
class AdapterToken:
    """What other ranks know an adapter by; they forget it when the token is gone."""

    number: int


@dataclass(frozen=True, kw_only=True)
class KeptAdapter:
    """An adapter in host memory, or in its device's where it comes from there, as rank 0 has it.

    Attributes:
        spec, rows_rD: Of this rank's shard.
    """

    token: AdapterToken
    spec: AdapterSpec
    rows_rD: Tensor

    @property
    def is_on_host(self) -> bool:
        return self.rows_rD.device.type == "cpu"


class ServingRanks(Protocol):
    """The other ranks. They carry out what they are told in the order of the calls; none of them waits for a pass."""

    def local_layout(self, layout: AdapterLayout) -> AdapterLayout:
        """Return the layout of rank 0's shard of the linears."""
        ...

    def keep(self, spec: AdapterSpec, rows_rD: Tensor) -> KeptAdapter:
        """Divide whole rank rows; the other ranks have their shards in host memory as long as the token lives.

        Raises:
            InputError: such an adapter cannot be divided.
        """
        ...

    def fetch(self, token: AdapterToken) -> None:
        """Let shards set out for their devices."""
        ...

    def insert(self, token: AdapterToken) -> None:
        """Put shards into the banks, as rank 0 has done."""
        ...

    def remove(self, slot: int) -> None:
        """Free a slot of the banks, as rank 0 has done."""
        ...

    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        """Allocate keys and values, in place of those that were there."""
        ...

    def announce(self, record: PassRecord) -> None:
        """Let the others compute a pass; rank 0 computes it right after this call."""
        ...


class OneProcess:
    """The ranks of a model that is not divided."""

    def __init__(self) -> None:
        self._tokens = itertools.count()

    def local_layout(self, layout: AdapterLayout) -> AdapterLayout:
        return layout

    def keep(self, spec: AdapterSpec, rows_rD: Tensor) -> KeptAdapter:
        return KeptAdapter(token=AdapterToken(next(self._tokens)), spec=spec, rows_rD=rows_rD)

    def fetch(self, token: AdapterToken) -> None:
        """No other rank has it."""

    def insert(self, token: AdapterToken) -> None:
        """No other rank has a bank."""

    def remove(self, slot: int) -> None:
        """No other rank has a bank."""

    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        """No other rank has a cache."""

    def announce(self, record: PassRecord) -> None:
        """No other rank computes."""
