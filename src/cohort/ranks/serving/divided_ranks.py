"""Rank 0's view of the others: divides adapters and passes on what its engine and its pool decide."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, Protocol

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import ShardingError, local_layout, shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_factors import outside_blocks
from cohort.core.errors import InputError, Problem
from cohort.ranks.calls import Call
from cohort.ranks.serving.serving_rank import ServingRank
from cohort.serving.pass_record import PassRecord
from cohort.serving.ranks import AdapterToken, KeptAdapter

__all__ = ["DividedRanks"]


_P = ParamSpec("_P")


class Listener(Protocol):
    """Another rank, which carries out calls in order and answers none."""

    def ask(self, call: Call) -> None: ...


class DividedRanks:
    """Satisfies :class:`~cohort.serving.ranks.ServingRanks`; any thread may call it.

    Plain LoRA is divided as NFS, BD-LoRA by its blocks, blocks that do not fit the degree as plain LoRA with the zeros
    between them (see :mod:`cohort.adapters.sharding`). None needs a collective of its own, and all mix in one pass.
    """

    def __init__(self, layout: AdapterLayout, links: Sequence[Listener]) -> None:
        """Take the linears of the whole model, and the ways to ranks 1, 2, ..."""
        self._layout, self._links, self._size = layout, tuple(links), len(links) + 1
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # tokens are let go of in any thread, perhaps in the middle of a message: the next message takes them along
        self._gone: deque[int] = deque()

    def local_layout(self, layout: AdapterLayout) -> AdapterLayout:
        return local_layout(layout, rank=0, size=self._size)

    def keep(self, spec: AdapterSpec, rows_rD: Tensor) -> KeptAdapter:
        """Divide an adapter by what its weights are; a flag that names blocks which are not there is not believed.

        Raises:
            InputError: DoRA, PiSSA, OLoRA, or ranks or alphas of its own for some linears.
        """
        if spec.use_bdlora is not None and not _is_in_blocks(self._layout, spec, rows_rD):
            spec = replace(spec, use_bdlora=None)
        try:
            shards = [shard_adapter(self._layout, spec, rows_rD, rank=j, size=self._size) for j in range(self._size)]
        except ShardingError as error:
            raise InputError(
                Problem(
                    where="adapter",
                    found=f"one that {self._size} ranks cannot divide: {error}",
                    allowed="LoRA and BD-LoRA with one rank and scale for all linears",
                    hint="Serve it without --tensor-parallel-size, or merge it into its base model.",
                )
            ) from error
        token = AdapterToken(next(self._numbers))
        with self._lock:
            for link, shard in zip(self._links, shards[1:], strict=True):
                link.ask(_told(ServingRank.keep, token.number, shard.spec, shard.weights_rD))
        weakref.finalize(token, self._gone.append, token.number).atexit = False
        return KeptAdapter(token=token, spec=shards[0].spec, rows_rD=shards[0].weights_rD)

    def fetch(self, token: AdapterToken) -> None:
        self._tell(_told(ServingRank.fetch, token.number))

    def insert(self, token: AdapterToken) -> None:
        self._tell(_told(ServingRank.insert, token.number))

    def remove(self, slot: int) -> None:
        self._tell(_told(ServingRank.remove, slot))

    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        opened = _told(
            ServingRank.open_cache, num_blocks=num_blocks, max_model_len=max_model_len, records_graphs=records_graphs
        )
        self._tell(opened)

    def announce(self, record: PassRecord) -> None:
        self._tell(_told(ServingRank.compute, record))

    def _tell(self, call: Call) -> None:
        gone = []
        while self._gone:
            gone.append(self._gone.popleft())
        with self._lock:
            for link in self._links:
                if gone:
                    link.ask(_told(ServingRank.forget, gone))
                link.ask(call)


def _told(method: Callable[Concatenate[ServingRank, _P], None], *args: _P.args, **named: _P.kwargs) -> Call:
    """Return a call without an answer: rank 0 goes on with its own part of the pass."""
    return replace(Call.of(method, *args, **named), is_answered=False)


def _is_in_blocks(layout: AdapterLayout, spec: AdapterSpec, rows_rD: Tensor) -> bool:
    """Return whether rank rows are 0 outside of the blocks that ``spec`` names."""
    blocks = spec.use_bdlora
    assert blocks is not None, "checked before"
    if any(blocks.width_refusals(layout.linears)):
        return False
    outside_ND = outside_blocks(layout, blocks)
    rows_NRD = rows_rD.view(blocks.nblocks, -1, layout.width)
    return not any(bool(own_RD[:, outside_D].any()) for own_RD, outside_D in zip(rows_NRD, outside_ND, strict=True))
