"""Samples of many trials -> one packed stream, and the split of a step into micro-batches.

Shapes:  T rows of the stream, filler included
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.errors import SegmentError
from cohort.data.tokenised import Sample
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import stage_together

__all__ = [
    "LEAST_ROWS",
    "ROW_MULTIPLE",
    "UNTRAINED",
    "HostStream",
    "PackedBatch",
    "SlotSample",
    "lay_out",
    "pack",
    "split_micro_batches",
    "stream_rows",
]

# what makes the rows of a float32 product bit-stable on CPUs: at least 32 rows, a multiple of 16 (measured; below
# 16 rows BLAS libraries take other code paths)
ROW_MULTIPLE = 16
LEAST_ROWS = 32
# the target of a row that predicts nothing, as in torch.nn.functional.cross_entropy
UNTRAINED = -100


@dataclass(frozen=True, kw_only=True)
class SlotSample:
    """One sample on its way into a stream.

    Attributes:
        slot: Slot of its adapter; -1 for the frozen model alone.
        sample: Tokens and training mask.
        row_keys: Dropout keys of its rows, int64 [L]; None where nothing is dropped.
        group_size: Samples of its group, which stand one after the other and share a micro-batch.
    """

    slot: int
    sample: Sample
    row_keys: NDArray[np.int64] | None = None
    group_size: int = 1


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One packed stream: samples one after the other, sorted by slot, then filler rows of no sample.

    Filler rounds the rows up to 16, on a CPU to 32 at least, which row-wise bit stability needs.

    Attributes:
        tokens_T: int64 token ids.
        positions_T: int64 position within the row's own sample.
        targets_T: int64 next token where it is trained, else -100.
        sequence_offsets: Row offsets of the samples, ``num_samples + 1``; the rest is filler.
        segments: Rows by slot and sample.
        trained_rows_M: int64 numbers of the rows with a target, known on the host so that nothing waits for the device.
        row_keys_T: int64 dropout keys, or None where no sample drops anything.
        trained_offsets: Where each sample's rows begin in ``trained_rows_M``, and behind them the end.
    """

    tokens_T: Tensor
    positions_T: Tensor
    targets_T: Tensor
    sequence_offsets: tuple[int, ...]
    segments: SegmentTable
    trained_rows_M: Tensor
    row_keys_T: Tensor | None
    trained_offsets: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the stream, filler included."""
        return self.segments.num_rows


def pack(samples: Sequence[SlotSample], *, num_slots: int, device: torch.device | str = "cpu") -> PackedBatch:
    """Lay ``samples`` one after the other, without padding between them.

    Args:
        samples: Sorted by slot, those of no adapter last; within a slot in the trial's own order.
        num_slots: Slots of the bank.
        device: Where the stream goes.

    Raises:
        SegmentError: the samples are not sorted by slot, or there is none.
    """
    used = sum(len(entry.sample.tokens) for entry in samples)
    num_rows = stream_rows(used, on_gpu=torch.device(device).type != "cpu")
    stream = lay_out(samples, num_slots=num_slots, num_rows=num_rows)
    keys = () if stream.row_keys is None else (stream.row_keys,)
    staged = stage_together([stream.tokens, stream.positions, stream.targets, stream.trained_rows, *keys], device)
    return PackedBatch(
        tokens_T=staged[0],
        positions_T=staged[1],
        targets_T=staged[2],
        sequence_offsets=stream.sequence_offsets,
        segments=stream.segments,
        trained_rows_M=staged[3],
        row_keys_T=staged[4] if keys else None,
        trained_offsets=tuple(np.searchsorted(stream.trained_rows, stream.sequence_offsets).tolist()),
    )


def stream_rows(num_used: int, *, on_gpu: bool) -> int:
    """Return the rows of a stream whose samples have ``num_used``."""
    rounded = -(-num_used // ROW_MULTIPLE) * ROW_MULTIPLE
    return rounded if on_gpu else max(rounded, LEAST_ROWS)


@dataclass(frozen=True, kw_only=True)
class HostStream:
    """A packed stream on the host; the attributes mean what they mean in :class:`PackedBatch`."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    trained_rows: NDArray[np.int64]
    row_keys: NDArray[np.int64] | None
    sequence_offsets: tuple[int, ...]
    segments: SegmentTable


def lay_out(samples: Sequence[SlotSample], *, num_slots: int, num_rows: int) -> HostStream:
    """Lay ``samples`` one after the other into a stream of ``num_rows`` rows, as :func:`pack` orders them.

    Raises:
        SegmentError: the samples are not sorted by slot, there is none, or they are longer than the stream.
    """
    if not samples:
        raise SegmentError("a packed batch needs at least one sample")
    lengths = [len(entry.sample.tokens) for entry in samples]
    segments = SegmentTable.from_samples(
        lengths, slots=[entry.slot for entry in samples], num_slots=num_slots, num_rows=num_rows
    )
    tokens = np.zeros(num_rows, dtype=np.int64)
    positions = np.zeros(num_rows, dtype=np.int64)
    targets = np.full(num_rows, UNTRAINED, dtype=np.int64)
    drops = any(entry.row_keys is not None for entry in samples)
    keys = np.zeros(num_rows, dtype=np.int64) if drops else None
    offsets = [0]
    for entry, length in zip(samples, lengths, strict=True):
        start, stop = offsets[-1], offsets[-1] + length
        tokens[start:stop] = entry.sample.tokens
        positions[start:stop] = np.arange(length)
        # row t predicts token t + 1
        targets[start : stop - 1] = np.where(entry.sample.trained[1:], entry.sample.tokens[1:], UNTRAINED)
        if keys is not None and entry.row_keys is not None:
            keys[start:stop] = entry.row_keys
        offsets.append(stop)
    return HostStream(
        tokens=tokens,
        positions=positions,
        targets=targets,
        trained_rows=np.flatnonzero(targets != UNTRAINED),
        row_keys=keys,
        sequence_offsets=tuple(offsets),
        segments=segments,
    )


def split_micro_batches(lengths: Sequence[int], *, token_budget: int) -> list[range]:
    """Cut samples into consecutive runs of at most ``token_budget`` tokens; a longer sample stands alone.

    There are as few runs as that allows, and the longest is as short as that many can be: a step that is little more
    than the budget becomes two passes of one size, not a full one and a rest that takes almost as long.

    Micro-batches split between samples only, and the order of samples never changes, so that sums over a trial's
    samples come out the same under any budget.
    """
    runs = _filled_runs(lengths, most=token_budget)
    if len(runs) < 2:
        return runs
    # the least limit that needs no more runs
    low, high = max(max(lengths), -(-sum(lengths) // len(runs))), token_budget
    while low < high:
        middle = (low + high) // 2
        evened = _filled_runs(lengths, most=middle)
        if len(evened) > len(runs):
            low = middle + 1
        else:
            runs, high = evened, middle
    return runs


def _filled_runs(lengths: Sequence[int], *, most: int) -> list[range]:
    """Fill one run after the other with at most ``most`` tokens."""
    runs, start, tokens = [], 0, 0
    for index, length in enumerate(lengths):
        if index > start and tokens + length > most:
            runs.append(range(start, index))
            start, tokens = index, 0
        tokens += length
    if start < len(lengths):
        runs.append(range(start, len(lengths)))
    return runs
