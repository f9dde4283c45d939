"""Rank rows of which every rank of a group keeps its part; here are their shape, their size and their key.

As a ``DTensor`` they are a tensor without data of its own. They are whole only where they are written, or leave for
ranks that divide them otherwise. A part is freed on its rank when nothing here names it any more.

Shapes:  r rank rows · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.training.trial import TrialSpec, TrialState

__all__ = [
    "GPU",
    "HOST",
    "Departure",
    "DividedRows",
    "PartKey",
    "PartSource",
    "Placement",
    "divided_rows_of",
    "whole_rows",
    "whole_state",
]

PartKey = tuple[int, str]
"""Under which every rank keeps its part: the number of what was kept together, and what of it this is."""

HOST = torch.device("cpu")
GPU = torch.device("cuda")
"""The GPUs of all ranks: each has a part there."""


class PartSource(Protocol):
    """What reaches the parts on their ranks; for any thread."""

    def whole(self, rows: DividedRows) -> Tensor:
        """Return all parts together, [r, D] on the host."""
        ...

    def begin_leaving(self, keys: Sequence[PartKey]) -> None:
        """Have every rank begin to copy its parts from its GPU into its host memory."""
        ...

    def have_left(self, keys: Sequence[PartKey]) -> bool:
        """Return whether the parts of all ranks are in host memory."""
        ...

    def wait_until_left(self, keys: Sequence[PartKey]) -> None:
        """Wait for that."""
        ...


class _Lease:
    """Lets go of the parts when nothing holds it any more."""

    def __init__(self, key: PartKey, let_go: Callable[[PartKey], None]) -> None:
        self.key, self._let_go = key, let_go

    def __del__(self) -> None:
        self._let_go(self.key)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the parts are.

    Attributes:
        device: :data:`GPU` or :data:`HOST`, on all ranks alike.
        gpu_bytes: Of the largest part: what they take of each GPU there.
        host_bytes: Of all parts: what they take of the host there.
    """

    device: torch.device
    gpu_bytes: int
    host_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the device that is counted."""
        return self.host_bytes if self.device == HOST else self.gpu_bytes


class DividedRows(Tensor):
    """Rank rows [r, D] in parts. An operation on them raises: :func:`whole_rows` brings their content.

    Attributes:
        spec: The trial whose adapter was divided.
        source: What reaches the parts.
        placement: Where they are.
    """

    spec: TrialSpec
    source: PartSource
    placement: Placement
    _lease: _Lease

    # attributes such as the shape are those of any tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: object, *_: object) -> NoReturn:
        raise NotImplementedError(
            f"{func} of rank rows that are in parts on the ranks of a group; take whole_rows() of them first"
        )

    @classmethod
    def kept(
        cls,
        key: PartKey,
        *,
        shape: tuple[int, int],
        dtype: torch.dtype,
        spec: TrialSpec,
        source: PartSource,
        placement: Placement,
        let_go: Callable[[PartKey], None],
    ) -> DividedRows:
        """Return the rows whose parts the ranks keep under ``key``; ``let_go`` is called once, with the last handle."""
        return cls._of(_Lease(key, let_go), shape, dtype, spec, source, placement)

    @classmethod
    def _of(
        cls,
        lease: _Lease,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        spec: TrialSpec,
        source: PartSource,
        placement: Placement,
    ) -> DividedRows:
        made: DividedRows = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("meta"))
        made._lease, made.spec, made.source, made.placement = lease, spec, source, placement
        return made

    @property
    def key(self) -> PartKey:
        return self._lease.key

    def on_host(self) -> DividedRows:
        """Return the same rows after their parts have left the GPUs."""
        placement = replace(self.placement, device=HOST)
        return self._of(self._lease, tuple(self.shape), self.dtype, self.spec, self.source, placement)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DividedRows({self.key}, shape={tuple(self.shape)}, dtype={self.dtype}, {self.placement})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        del protocol
        raise TypeError("rank rows that are in parts cannot be sent: their keys can, to the ranks that have the parts")


def whole_rows(rows_rD: Tensor) -> Tensor:
    """Return rank rows with their content, [r, D]: parts put together on the host, and others as they are.

    Raises:
        RankLostError: a rank with a part has ended.
    """
    return rows_rD.source.whole(rows_rD) if isinstance(rows_rD, DividedRows) else rows_rD


def whole_state(state: TrialState) -> TrialState:
    """Return a state whose tensors have their content, as of :func:`whole_rows`."""
    moments = {name: whole_rows(moment) for name, moment in state.adapter.moments.items()}
    own = AdapterState(weights=whole_rows(state.adapter.weights), moments=moments)
    return replace(state, adapter=own)


def divided_rows_of(value: TrialState | Tensor) -> dict[str, DividedRows]:
    """Return the tensors of a state, or of weights, that are in parts: all of them, or none."""
    tensors = value.adapter.tensors if isinstance(value, TrialState) else {"weights": value}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DividedRows)}


class Departure:
    """Parts on their way from the GPUs of their ranks into host memory, while those train: as a future of them."""

    def __init__(self, rows: Mapping[str, DividedRows]) -> None:
        """Begin to copy ``rows``, by name."""
        self._rows = dict(rows)
        self._keys = [each.key for each in self._rows.values()]
        self._source = next(iter(self._rows.values())).source
        self._source.begin_leaving(self._keys)

    def done(self) -> bool:
        """Whether all parts are there."""
        return self._source.have_left(self._keys)

    def exception(self) -> None:
        """Return None: a rank whose copy fails ends its group."""

    def result(self) -> dict[str, Tensor]:
        """Wait until all parts are there; return the rows, by name.

        Raises:
            RankLostError: a rank has ended.
        """
        self._source.wait_until_left(self._keys)
        return {name: each.on_host() for name, each in self._rows.items()}
