"""A rank of a group: it keeps its own parts of states and best weights, and loads trials from them.

No byte of a state leaves the rank for that, and all ranks copy at the same time.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import verb
from cohort.ranks.divided_states.divided_rows import PartKey
from cohort.ranks.divided_states.part_shelf import KeptParts, PartShelf
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["PartKeeper"]


class PartKeeper(LocalExecutor):
    """An executor of a part of the model, whose states are parts as well.

    Attributes:
        shelf: What it keeps of states that are out of its bank.
    """

    def __init__(self, *args: Any, repeats_smaller: bool = False, **kwargs: Any) -> None:
        """Allocate the bank; the arguments are those of :class:`~cohort.training.executor.Executor`."""
        super().__init__(*args, repeats_smaller=repeats_smaller, **kwargs)
        self.shelf = PartShelf()

    @abstractmethod
    def load_part(
        self,
        spec: TrialSpec,
        part: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial of the whole adapter ``spec`` resident, fresh or from this rank's part of a state."""

    @verb
    def keep_state(self, trial_id: int, number: int, on_gpu: bool) -> KeptParts:  # noqa: FBT001
        """Keep a copy of this rank's part of a resident's state as ``number``; on its GPU if asked for and it fits."""
        return self._keep(trial_id, number, on_gpu=on_gpu, tensors=self._tensors(trial_id))

    @verb
    def keep_weights(self, trial_id: int, number: int, on_gpu: bool) -> KeptParts:  # noqa: FBT001
        """Keep a copy of this rank's part of a resident's weights, as :meth:`keep_state` keeps states."""
        weights_rD = self._tensors(trial_id)["weights"]
        return self._keep(trial_id, number, on_gpu=on_gpu, tensors={"weights": weights_rD})

    @verb
    def load_kept(self, spec: TrialSpec, keys: Mapping[str, PartKey], step: int, rows: TokenisedRows | None) -> int:
        """Make a trial resident from the parts that this rank keeps under ``keys``, by name; return its slot."""
        parts = {name: self.shelf.get(key) for name, key in keys.items()}
        own = AdapterState(weights=parts.pop("weights"), moments=parts)
        return self.load_part(spec, TrialState(adapter=own, step=step), rows=rows)

    @verb
    def part(self, key: PartKey) -> Tensor:
        """Return this rank's part, from where it is."""
        return self.shelf.get(key)

    @verb
    def forget_parts(self, keys: Sequence[PartKey]) -> None:
        self.shelf.forget(keys)

    @verb
    def begin_leaving(self, keys: Sequence[PartKey]) -> None:
        self.shelf.begin_leaving(keys)

    @verb
    def have_left(self, keys: Sequence[PartKey]) -> bool:
        return self.shelf.have_left(keys)

    @verb
    def wait_until_left(self, keys: Sequence[PartKey]) -> None:
        self.shelf.wait_until_left(keys)

    def _tensors(self, trial_id: int) -> dict[str, Tensor]:
        """Return the rank rows of a resident in the bank, by name: not copies."""
        own = self.bank.rank_rows(self.slot_of(trial_id))
        return {name: buffer[own] for name, buffer in {"weights": self.bank.weights_RD, **self.bank.moments_RD}.items()}

    def _keep(self, trial_id: int, number: int, *, on_gpu: bool, tensors: Mapping[str, Tensor]) -> KeptParts:
        step = self.steps_of(trial_id)
        if on_gpu:
            # a full GPU is no error: the copy goes to the host instead
            with contextlib.suppress(torch.OutOfMemoryError):
                return self.shelf.put(number, {name: own.clone() for name, own in tensors.items()}, step=step)
        return self.shelf.put_on_host(number, tensors, step=step)
