"""Trains adapters on a model that is divided over ranks: whole states in and out, shards inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterState
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import join_rank_rows, local_layout, replicated_columns, shard_adapter
from cohort.core.events import StepDone
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.parallel.tensor.groups import RankGroup
from cohort.parallel.tensor.tensor_optimizer import TensorOptimizer
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["TensorExecutor"]


class TensorExecutor:
    """One rank's part of an executor over the whole group. All ranks make the same calls with the same arguments.

    Plain LoRA is divided as NFS: factors of the divided side by shards, the others whole, with one sum of their
    gradients a step. BD-LoRA of a multiple of as many blocks as ranks is BD-LoRA, or LoRA, on each shard: no exchange.
    Both mix in one pack. States are those of one process, so a trial may go on with another number of ranks.
    Passes must fit into the memory of every rank: one that runs short alone would cut its pass in parts that the others
    do not know of.
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
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
    ) -> None:
        """Allocate a bank of shards next to the rank's shard of the model.

        Args:
            decoder: From :func:`~cohort.parallel.tensor.tensor_decoder.load_tensor_decoder` with this group.
            layout: The adapted linears of the whole model.

        Raises:
            ShardingError: the ranks do not divide a linear's width.
        """
        self._layout, self._group, self._dtype = layout, group, dtype
        self._specs: dict[int, TrialSpec] = {}
        self._replicated: dict[int, Tensor] = {}
        self.executor = Executor(
            decoder,
            target_linears=local_layout(layout, rank=group.rank, size=group.size),
            train_rows=train_rows,
            # a graph holds a rank's kernels, not what other ranks do at its collectives
            settings=replace(settings, graph_tokens=0),
            device=decoder.device,
            dtype=dtype,
            compute_dtype=decoder.dtype,
            optimizer=TensorOptimizer(optimizer, group, replicated=self._replicated),
        )

    def load(self, spec: TrialSpec, state: TrialState | None = None) -> None:
        """Make a trial resident on all ranks, fresh or from the whole ``state``.

        Raises:
            BankFullError: no room.
            ShardingError: its blocks cannot be trained on this number of ranks.
        """
        if state is None:
            weights_rD = initial_weights(self._layout, spec.adapter, seed=spec.seed, dtype=self._dtype)
            state = TrialState(adapter=AdapterState(weights=weights_rD))
        replicated_D = replicated_columns(self._layout, spec.adapter, size=self._group.size)
        shard = shard_adapter(
            self._layout, spec.adapter, state.adapter.weights, rank=self._group.rank, size=self._group.size
        )
        moments = {name: self._shard(spec, moment) for name, moment in state.adapter.moments.items()}
        local = TrialState(adapter=AdapterState(weights=shard.weights_rD, moments=moments), step=state.step)
        self._specs[spec.trial_id], self._replicated[spec.trial_id] = spec, replicated_D
        self.executor.load(replace(spec, adapter=shard.spec), local)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one step of each of ``trial_ids`` (default: all); the events are equal on all ranks."""
        return self.executor.step(trial_ids)

    def evaluate(
        self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        return self.executor.evaluate(trial_ids, rows=rows, row_ids=row_ids)

    def state(self, trial_id: int) -> TrialState:
        """Return the whole state of a trial, joined on every rank: one all-gather for each of its tensors."""
        local, spec = self.executor.state(trial_id), self._specs[trial_id]
        joined = {name: self._join(spec, tensor) for name, tensor in local.adapter.tensors.items()}
        weights_rD = joined.pop("weights")
        return TrialState(adapter=AdapterState(weights=weights_rD, moments=joined), step=local.step)

    def drop(self, trial_id: int) -> None:
        self.executor.drop(trial_id)
        del self._specs[trial_id], self._replicated[trial_id]

    def _shard(self, spec: TrialSpec, rows_rD: Tensor) -> Tensor:
        found = shard_adapter(self._layout, spec.adapter, rows_rD, rank=self._group.rank, size=self._group.size)
        return found.weights_rD

    def _join(self, spec: TrialSpec, local_rD: Tensor) -> Tensor:
        device = self.executor.bank.weights_RD.device
        parts = self._group.all_gather(local_rD.to(device))
        by_rank = {rank: part.cpu() for rank, part in enumerate(parts)}
        return join_rank_rows(self._layout, spec.adapter, by_rank, size=self._group.size)
