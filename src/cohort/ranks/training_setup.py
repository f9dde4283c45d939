"""What a rank that trains is sent first, and the member of the executors that it builds from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.cache_directory import default_cache_directory
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.models.weights import load_decoder
from cohort.ranks.group_meeting import join_group
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.pipeline.stage_links import DistributedLinks
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.sharded_executor import ShardedExecutor
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.optimizers import optimizer_for

__all__ = ["TrainingSetup"]

# ranks wait for each other while the slowest loads; a rank that is lost is noticed by rank 0, which ends the others
_PATIENCE = timedelta(hours=4)


@dataclass(frozen=True, kw_only=True)
class TrainingSetup(RankSetup):
    """Everything a rank needs to build its executor.

    Attributes:
        quantization: How the weights of its linears are kept.
        room_bytes: What it may take of its GPU; None for all of it.
        optimizers: Those that trials may have, by name.
        target_linears: ``(in_features, out_features)`` of the adapted linears by full module path.
        settings: The executor's.
        memory_limit_bytes: As an executor's.
        train_rows: Training rows of the first task; number 0 among the rows that the rank keeps.
        weights: Which layers are not resident, and where their weights are.
        group: How the ranks hold one model together; None where each has a whole one, or parts of layers.
        microbatches: How the windows of a pipeline are packed: ``auto``, ``greedy`` or ``solver``.
    """

    target_linears: Mapping[str, tuple[int, int]]
    settings: ExecutorSettings
    memory_limit_bytes: int | None
    train_rows: TokenisedRows
    quantization: str = "none"
    room_bytes: int | None = None
    optimizers: tuple[str, ...] = ("adamw",)
    weights: RankWeights = ALL_RESIDENT
    group: RankGroupPlan | None = None
    microbatches: str = "greedy"

    @property
    def rows(self) -> Sequence[TokenisedRows]:
        return (self.train_rows,)

    def local(self, decoder: Decoder) -> LocalExecutor:
        """Return the executor of a rank that has the whole model, as ``decoder``."""
        return LocalExecutor(
            decoder,
            target_linears=self.target_linears,
            train_rows=self.train_rows,
            settings=self.settings,
            device=self.device,
            compute_dtype=decoder.dtype,
            memory_limit_bytes=self.memory_limit_bytes,
            optimizer=optimizer_for(self.optimizers),
        )

    def build(self) -> LocalExecutor:
        """Load the frozen model and allocate the bank, exactly as rank 0 has them; or this rank's part of them."""
        device = torch.device(self.device)
        if device.type == "cuda" and self.memory_limit_bytes is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.memory_limit_bytes / total), device)
        if self.group is not None:
            return self._part(self.group, device)
        return self.local(self._loaded(device, streaming=self.weights.streaming(device, rank=self.rank)))

    def _loaded(
        self,
        device: torch.device,
        *,
        streaming: LayerStreaming | None = None,
        part: range | None = None,
        has_head: bool = False,
    ) -> Decoder:
        return load_decoder(
            self.model_directory,
            dtype=self.dtype,
            device=device,
            weight_format=self.quantization,
            cache_directory=default_cache_directory(),
            room_bytes=self.room_bytes,
            streaming=streaming,
            part=part,
            has_head=has_head,
        )

    def _part(self, group: RankGroupPlan, device: torch.device) -> LocalExecutor:
        join_group(self.rendezvous, rank=self.rank, size=group.size, device=self.torch_device, patience=_PATIENCE)
        if isinstance(group, PipelineGroup):
            decoder = self._loaded(device, part=group.layers(self.rank), has_head=group.shares_head)
            links = DistributedLinks(
                stage=self.rank, num_stages=group.size, device=device, shares_head=group.shares_head
            )
            return StagedExecutor(
                decoder,
                group,
                stage=self.rank,
                links=links,
                layout=AdapterLayout(dict(self.target_linears)),
                train_rows=self.train_rows,
                settings=self.settings,
                memory_limit_bytes=self.memory_limit_bytes,
                optimizer=optimizer_for(self.optimizers),
            )
        ranks = DistributedGroup()
        return ShardedExecutor(
            load_tensor_decoder(self.model_directory, ranks, dtype=getattr(torch, self.dtype), device=device),
            ranks,
            layout=AdapterLayout(dict(self.target_linears)),
            train_rows=self.train_rows,
            settings=self.settings,
            memory_limit_bytes=self.memory_limit_bytes,
            optimizer=optimizer_for(self.optimizers),
        )
