"""What a rank is sent first: which model it has a part of, and how to build what it serves with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Tenant

__all__ = ["RankSetup"]


@dataclass(frozen=True, kw_only=True)
class RankSetup(ABC):
    """Everything a rank needs to begin; all ranks get the same but for their numbers.

    Attributes:
        rank: Its number.
        gpu: The number of its GPU on its host; that of the rank when None.
        model_directory: Local files of the base model.
        device: ``cpu`` or ``cuda``.
        dtype: In what the frozen model computes, by torch's name.
        threads: CPU threads of torch; another number would give other last bits.
        rendezvous: Where ranks that hold one model together find each other, an address of
            :mod:`~cohort.ranks.group_meeting`.
    """

    rank: int
    model_directory: str
    device: str
    dtype: str
    threads: int
    gpu: int | None = None
    rendezvous: str = ""

    @property
    def is_in_group(self) -> bool:
        """Whether the rank holds its model together with others."""
        return bool(self.rendezvous)

    @property
    def torch_device(self) -> torch.device:
        """The device of the rank's process."""
        on_gpu = self.device == "cuda"
        return torch.device("cuda", self.rank if self.gpu is None else self.gpu) if on_gpu else torch.device("cpu")

    @property
    def rows(self) -> Sequence[TokenisedRows]:
        """Rows that travel with the setup, and later calls name by their numbers."""
        return ()

    @abstractmethod
    def build(self) -> Tenant:
        """Return what the rank serves with, in the rank's process.

        Raises:
            Exception: anything wrong with the model, or no connection to the other ranks.
        """
