"""Trains adapters on a model that is divided over ranks: whole states in, and each rank's part of them out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import AdapterShard, ShardingError, local_layout, replicated_columns, shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.ranks.divided_states.part_keeper import PartKeeper
from cohort.ranks.tensor.groups import RankGroup
from cohort.ranks.tensor.tensor_optimizer import TensorOptimizer
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.fresh_weights import FreshWeights
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ShardedExecutor"]


class ShardedExecutor(PartKeeper):
    """One rank's part of an executor over the whole group. All ranks make the same calls with the same arguments.

    Plain LoRA is divided as NFS: factors of the divided side by shards, the others whole, with one sum of their
    gradients a step. BD-LoRA of a multiple of as many blocks as ranks is BD-LoRA, or LoRA, on each shard: no exchange.
    Both mix in one pack. Whole states go in, and this rank's parts come out and go in again; parts of all ranks make
    a whole state (:mod:`~cohort.ranks.divided_states`), so a trial may go on with another number of ranks. A shard
    never has more rank rows than the whole adapter, so it fits where that does. Passes must fit into the memory of
    every rank: one that runs short raises, since it cannot cut a pass that the others share.
    """

    def __init__(
        self,
        decoder: Decoder,
        group: RankGroup,
        *,
        layout: AdapterLayout,
        train_rows: TokenisedRows,
        settings: ExecutorSettings,
        dtype: torch.dtype = torch.float32,
        memory_limit_bytes: int | None = None,
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
    ) -> None:
        """Allocate a bank of shards next to the rank's shard of the model.

        Args:
            decoder: From :func:`~cohort.ranks.tensor.tensor_decoder.load_tensor_decoder` with this group.
            layout: The adapted linears of the whole model.

        Raises:
            ShardingError: the ranks do not divide a linear's width.
        """
        self._layout, self._group = layout, group
        self._replicated: dict[int, Tensor] = {}
        super().__init__(
            decoder,
            target_linears=local_layout(layout, rank=group.rank, size=group.size),
            train_rows=train_rows,
            settings=settings,
            device=decoder.device,
            dtype=dtype,
            compute_dtype=decoder.dtype,
            memory_limit_bytes=memory_limit_bytes,
            optimizer=TensorOptimizer(optimizer, group, replicated=self._replicated),
        )
        self._divided = _FreshShards(self.bank, decoder, layout=layout, group=group)
        if self.captured is not None and group.size > 1:
            # all replay a pass or none does: their sums are recorded with it
            self.captured.recorder.agree = self._agree

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident on all ranks, fresh or from the whole ``state``; return its slot.

        Raises:
            BankFullError: no room.
            ShardingError: it cannot be trained on this number of ranks.
        """
        part = None
        if state is not None:
            parts = {
                name: self._divided.shard(spec.adapter, whole_rD).weights_rD
                for name, whole_rD in state.adapter.tensors.items()
            }
            own = AdapterState(weights=parts.pop("weights"), moments=parts)
            part = TrialState(adapter=own, step=state.step)
        return self.load_part(spec, part, rows=rows, rank=rank)

    def load_part(
        self,
        spec: TrialSpec,
        part: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial of the whole adapter ``spec`` resident, fresh or from this rank's shard of a state.

        Raises:
            BankFullError, ShardingError: as of :meth:`load`.
        """
        declared = OPTIMIZER_DECLARATIONS.find(spec.optim)
        why = None if declared is None else declared.not_divided.get("tensor")
        if self._group.size > 1 and why is not None:
            raise ShardingError(f"optim: {spec.optim} on {self._group.size} ranks of one model: {why}")
        replicated_D = replicated_columns(self._layout, spec.adapter, size=self._group.size)
        # of no entries: it says what the shard is
        shard = self._divided.shard(spec.adapter, torch.empty(spec.adapter.num_rows, self._layout.width, device="meta"))
        if part is None:
            part = TrialState(adapter=AdapterState(weights=self._divided.of(spec.adapter, spec.seed)))
        slot = super().load(replace(spec, adapter=shard.spec), part, rows=rows, rank=rank)
        self._replicated[spec.trial_id] = replicated_D
        return slot

    def drop(self, trial_id: int) -> None:
        super().drop(trial_id)
        del self._replicated[trial_id]

    def _agree(self, recorded: bool) -> bool:  # noqa: FBT001
        """Return whether all ranks recorded a pass."""
        missing = torch.tensor([float(not recorded)], device=self.memory.device)
        return self._group.all_reduce(missing).item() == 0


class _FreshShards(FreshWeights):
    """Divides adapters, and draws those that trials begin with: a shard of the whole draw, whatever the ranks."""

    def __init__(self, bank: AdapterBank, decoder: Decoder, *, layout: AdapterLayout, group: RankGroup) -> None:
        super().__init__(bank, decoder)
        self._whole, self._group = layout, group

    def shard(self, spec: AdapterSpec, whole_rD: Tensor) -> AdapterShard:
        """Return this rank's part of whole rank rows."""
        return shard_adapter(self._whole, spec, whole_rD, rank=self._group.rank, size=self._group.size)

    def _initial(self, spec: AdapterSpec, seed: int) -> Tensor:
        return self.shard(spec, initial_weights(self._whole, spec, seed=seed, dtype=self._dtype)).weights_rD
