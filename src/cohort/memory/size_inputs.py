"""What the sizes of an executor follow from, except for the memory that is free: trials, rows, passes and requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.machine.machine import Machine
from cohort.runs.fact_groups import SizeFacts
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile
from cohort.training.optimizers import DEFAULT_OPTIMIZER, optimizer_for
from cohort.training.optimizers.optimizer import Optimizer, moment_bytes
from cohort.training.trial import TrialSpec

if TYPE_CHECKING:
    # the ranks' programs behind it compute; sizes do not
    from cohort.ranks.launch.launched import LaunchedRanks

__all__ = ["SizeInputs", "SizeRequest", "rank_row_bytes", "state_row_bytes", "task_optimizer"]


@dataclass(frozen=True, kw_only=True)
class SizeRequest:
    """Sizes to use where the machine allows it; None leaves one to :func:`choose_sizes`.

    Attributes:
        token_budget: Most tokens of a micro-batch.
        num_slots, rank_rows: The bank's.
        num_ranks: Executors, each in a process of its own; one for each of the task's GPUs when None.
        launched: The processes of all but the first, where a launcher has started them.
        began_with: The strategy of a run that is resumed: ``tensor``, ``pipeline``, or ``replicas`` for any other.
    """

    token_budget: int | None = None
    num_slots: int | None = None
    rank_rows: int | None = None
    num_ranks: int | None = None
    launched: LaunchedRanks | None = None
    began_with: str | None = None

    @property
    def ranks_here(self) -> int | None:
        """Executors on this host, one for each of its GPUs that train; None as with ``num_ranks``."""
        return self.num_ranks if self.launched is None else self.launched.place.ranks_here

    @classmethod
    def recorded(
        cls, sizes: SizeFacts, *, num_ranks: int | None = None, launched: LaunchedRanks | None = None
    ) -> SizeRequest:
        """Return the sizes a run began with; it may go on with another number of executors."""
        # a resumed run must admit trials as before, although another amount of memory may be free now
        return cls(
            token_budget=sizes.token_budget,
            num_slots=sizes.num_slots,
            rank_rows=sizes.rank_rows,
            num_ranks=num_ranks,
            launched=launched,
            began_with=sizes.rank_group or "replicas",
        )


@dataclass(frozen=True, kw_only=True)
class SizeInputs:
    """Everything that determines the sizes, except the free memory.

    Attributes:
        specs: The trials with the most needs.
        layout: Adapted linears.
        machine: Device and precision.
        longest_row: Tokens of the longest row, or of the longest group of rows that share a pass.
        longest_source: Where the longest row is from, for errors.
        needs: What passes take; None on a CPU without a limit.
        request: Sizes to use where memory allows it.
        gradient_checkpointing: When passes are recomputed.
        optimizer: The trials'; its moments are a part of the bank.
        answer_tokens: Positions of all answers that the trials draw at once, prompts included.
        answer_token_bytes: Keys and values of one of them.
        answer_graph_bytes: Logits that recorded decoding passes of all those answers keep on a GPU.
    """

    specs: Sequence[TrialSpec]
    layout: AdapterLayout
    machine: Machine
    longest_row: int
    longest_source: str = "the longest"
    needs: MemoryNeeds | None = None
    request: SizeRequest = SizeRequest()
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.AUTO
    optimizer: Optimizer = DEFAULT_OPTIMIZER
    answer_tokens: int = 0
    answer_token_bytes: int = 0
    answer_graph_bytes: int = 0

    @property
    def num_ranks(self) -> int:
        """Executors that train, each in a process of its own."""
        return self.request.num_ranks or max(1, self.machine.num_gpus)

    @property
    def rows_by_need(self) -> list[int]:
        """Rank rows of each trial of one executor, most first; several executors have a part of the trials each."""
        rows = sorted((aligned_rank(spec.adapter.num_rows) for spec in self.specs), reverse=True)
        return rows[: math.ceil(len(rows) / self.num_ranks)]

    @property
    def most_rows(self) -> int:
        """Rank rows of the adapter with the most."""
        return self.widest.num_rows

    @property
    def widest(self) -> AdapterSpec:
        """The adapter with the most rank rows."""
        return max((spec.adapter for spec in self.specs), key=lambda adapter: adapter.num_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one rank row in the bank."""
        has_copy = self.machine.dtype == "bfloat16"
        own = rank_row_bytes(self.layout, has_compute_copy=has_copy, optimizer=self.optimizer)
        adapters = [spec.adapter for spec in self.specs]
        # products read a scaled copy of the factors, and gradients of dropped products have a place of their own
        has_scaled = not has_copy and any(adapter.has_patterns for adapter in adapters)
        has_dropped = any(adapter.use_dora and adapter.lora_dropout for adapter in adapters)
        return own + self.layout.width * torch.float32.itemsize * (has_scaled + has_dropped)

    @property
    def state_row_bytes(self) -> int:
        """Bytes of one rank row of a parked trial: its weight and its moments."""
        return state_row_bytes(self.layout, optimizer=self.optimizer)

    @property
    def mean_batch_size(self) -> float:
        """Batch size of a resident, averaged over the steps of an epoch: trials of small batches take more steps."""
        return len(self.specs) / sum(1 / spec.batch_size for spec in self.specs)

    @property
    def mask_bytes(self) -> int:
        """Bytes of what keeps gradients in the blocks of BD-LoRA: one for each block and column of a rank row."""
        structures = {spec.adapter.use_bdlora for spec in self.specs}
        return sum(blocks.nblocks for blocks in structures if blocks is not None) * self.layout.width


def rank_row_bytes(layout: AdapterLayout, *, has_compute_copy: bool, optimizer: Optimizer = DEFAULT_OPTIMIZER) -> int:
    """Return the bytes one rank row takes in the bank: weight and gradient in float32, moments, and a bf16 copy."""
    moments = moment_bytes(optimizer, width=layout.width, weights_dtype=torch.float32)
    return layout.width * (2 * torch.float32.itemsize + (torch.bfloat16.itemsize if has_compute_copy else 0)) + moments


def state_row_bytes(layout: AdapterLayout, *, optimizer: Optimizer) -> int:
    """Return the bytes of one rank row of a trial outside of the bank: its weight in float32 and its moments."""
    moments = moment_bytes(optimizer, width=layout.width, weights_dtype=torch.float32)
    return layout.width * torch.float32.itemsize + moments


def task_optimizer(task: TaskFile) -> Optimizer:
    """Return what steps the trials of a task; it names the moments that their states have."""
    return optimizer_for(possible_optimizers(task))
