"""A rank's own parts of states that are out of its bank: on its GPU, then in its host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.ranks.divided_states.divided_rows import PartKey
from cohort.training.transfers.host_copies import HostCopies

__all__ = ["KeptParts", "PartShelf"]


@dataclass(frozen=True, kw_only=True)
class KeptParts:
    """What a rank says of the parts that it has put on its shelf.

    Attributes:
        num_bytes, dtypes: Of each, by name.
        are_on_gpu: Whether they are; all of them are at one place.
        step: Optimizer steps that the trial has done.
    """

    num_bytes: Mapping[str, int]
    dtypes: Mapping[str, torch.dtype]
    are_on_gpu: bool
    step: int


class PartShelf:
    """Parts by key. They leave the GPU in threads, while the rank trains."""

    def __init__(self) -> None:
        """Begin without a part."""
        self._parts: dict[PartKey, Tensor] = {}
        self._coming: dict[PartKey, Future[dict[str, Tensor]]] = {}
        self._copies = HostCopies()

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, number: int, tensors: Mapping[str, Tensor], *, step: int) -> KeptParts:
        """Keep ``tensors``, by name, which do not change any more."""
        self._parts |= {(number, name): tensor for name, tensor in tensors.items()}
        return KeptParts(
            num_bytes={name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()},
            dtypes={name: tensor.dtype for name, tensor in tensors.items()},
            are_on_gpu=all(tensor.is_cuda for tensor in tensors.values()),
            step=step,
        )

    def put_on_host(self, number: int, tensors: Mapping[str, Tensor], *, step: int) -> KeptParts:
        """Keep copies of ``tensors`` in host memory, made by threads at the same time; they may change afterwards."""
        copies = {name: self._copies.start({name: tensor}) for name, tensor in tensors.items()}
        return self.put(number, {name: copy.result()[name] for name, copy in copies.items()}, step=step)

    def get(self, key: PartKey) -> Tensor:
        """Return a part, from where it is; one that is on its way to the host from the GPU."""
        self._take_arrived([key])
        return self._parts[key]

    def forget(self, keys: Sequence[PartKey]) -> None:
        """Free parts; a copy that is on its way ends unseen."""
        for key in keys:
            self._parts.pop(key, None)
            self._coming.pop(key, None)

    def begin_leaving(self, keys: Sequence[PartKey]) -> None:
        """Begin to copy parts to the host."""
        for key in keys:
            part = self._parts[key]
            if part.is_cuda and key not in self._coming:
                self._coming[key] = self._copies.start({"part": part})

    def have_left(self, keys: Sequence[PartKey]) -> bool:
        """Whether all of these parts are on the host; their memory on the GPU is free then."""
        self._take_arrived(keys)
        # one whose copy has failed is where it was
        return not any(key in self._coming or self._parts[key].is_cuda for key in keys)

    def wait_until_left(self, keys: Sequence[PartKey]) -> None:
        """Wait for the copies that were begun.

        Raises:
            RuntimeError: a copy failed, as where the host has no memory left.
        """
        for key in keys:
            if key in self._coming:
                self._parts[key] = self._coming.pop(key).result()["part"]

    def _take_arrived(self, keys: Sequence[PartKey]) -> None:
        self.wait_until_left([key for key in keys if key in self._coming and self._coming[key].done()])
