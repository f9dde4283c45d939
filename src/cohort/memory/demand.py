"""What a task wants of a machine: made once, and handed to all that choose where its model is and what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import GradientCheckpointing
from cohort.data.tokenised import TokenisedRows
from cohort.machine.machine import Machine
from cohort.memory.size_inputs import SizeInputs, SizeRequest, rank_row_bytes, task_optimizer
from cohort.models.config import DecoderConfig
from cohort.models.decode_sizes import most_recorded_rows
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.tasks.task_file import TaskFile
from cohort.training.rollouts.group_objective import GroupObjective
from cohort.training.trial import TrialSpec

__all__ = ["Demand"]

# keys and values of an answer come in blocks of as many, of which it fills the last one rarely
BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A task and the machine that it is to train on.

    Attributes:
        task: The task.
        machine: Device and precision; its free memory is without the base model.
        config: Sizes of its base model.
        layout: Adapted linears: of the whole model, or of the rank that holds the most of it.
        specs: Its trials with the most needs.
        rows: Training rows.
        num_ranks: Processes that train, one on each GPU.
    """

    task: TaskFile
    machine: Machine
    config: DecoderConfig
    layout: AdapterLayout
    specs: Sequence[TrialSpec]
    rows: TokenisedRows
    num_ranks: int = 1

    @property
    def is_on_gpu(self) -> bool:
        return self.machine.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Format of what is computed."""
        dtype: torch.dtype = getattr(torch, self.machine.dtype)
        return dtype

    @property
    def free_bytes(self) -> int:
        """Bytes that the machine has free, or the task's limit where that is lower."""
        limit = self.task.memory.limit
        return self.machine.memory_bytes if limit is None else min(self.machine.memory_bytes, limit)

    @property
    def rank_rows(self) -> list[int]:
        """Rank rows of each trial in a bank."""
        return [aligned_rank(spec.adapter.num_rows) for spec in self.specs]

    @property
    def row_bytes(self) -> int:
        """Bytes of one rank row in a bank of plain adapters."""
        has_copy = self.machine.dtype == "bfloat16"
        return rank_row_bytes(self.layout, has_compute_copy=has_copy, optimizer=task_optimizer(self.task))

    @property
    def longest_group(self) -> int:
        """Tokens of the longest group of rows that share a pass, often of one row; with the answer drawn to it."""
        longest = int(self.rows.group_lengths(self.specs[0].objective.group_size).max())
        return min(longest + self.drawn_tokens, self.config.max_position_embeddings) if self.drawn_tokens else longest

    @property
    def drawn_tokens(self) -> int:
        """Most tokens of an answer that a trial draws to a row; 0 where none does."""
        objectives = (spec.objective for spec in self.specs)
        return max((own.max_completion_length for own in objectives if isinstance(own, GroupObjective)), default=0)

    def size_inputs(self, *, needs: MemoryNeeds | None, request: SizeRequest | None = None) -> SizeInputs:
        """Return what the sizes of an executor follow from; ``needs`` is what passes take, where it is known."""
        lengths = self.rows.group_lengths(size := self.specs[0].objective.group_size)
        longest = int(lengths.argmax())
        return SizeInputs(
            specs=self.specs,
            layout=self.layout,
            machine=self.machine,
            # rows that are compared share a pass, so the most that must fit is a whole group
            longest_row=self.longest_group,
            longest_source=self.rows.sources[size * longest],
            needs=needs,
            request=request or SizeRequest(),
            gradient_checkpointing=GradientCheckpointing(self.task.memory.gradient_checkpointing),
            optimizer=task_optimizer(self.task),
            answer_tokens=self._answer_tokens,
            answer_token_bytes=2 * self.config.num_layers * self.config.kv_width * self.dtype.itemsize,
            answer_graph_bytes=most_recorded_rows(self._num_answers) * self.config.vocab_size * self.dtype.itemsize,
        )

    @property
    def _num_answers(self) -> int:
        """Answers that trials draw in a step of each."""
        objectives = ((spec.batch_size, spec.objective) for spec in self.specs)
        return sum(size * own.num_generations for size, own in objectives if isinstance(own, GroupObjective))

    @property
    def _answer_tokens(self) -> int:
        """Positions of all answers that trials train on in a step of each, were they all as long as they may be."""
        longest = int(self.rows.lengths.max())
        return sum(
            spec.batch_size * own.num_generations * (longest + own.max_completion_length + BLOCK_TOKENS)
            for spec in self.specs
            if isinstance(own := spec.objective, GroupObjective)
        )
