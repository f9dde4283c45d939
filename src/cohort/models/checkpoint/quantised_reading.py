"""Reads a checkpoint as a format keeps it: from the cache of what was quantised before, or quantised as it is read.

Threads copy weights to a GPU as they are stored, while the ones before them are quantised there. Weights that the host
made float32 and copied one by one took nine times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor

from cohort.models.checkpoint.checkpoint_reading import Begun, CheckpointReader, FusedContent, in_order
from cohort.models.checkpoint.copies_ahead import CopiesAhead, OwnCopies
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.safetensors_files import StoredTensor
from cohort.models.checkpoint.stored_nf4 import is_stored, read_stored
from cohort.models.checkpoint_layout import FusedTensor
from cohort.models.weight_formats.weight_format import Quantisation, StoredTensors

__all__ = ["read_quantised"]

# Of weights as they are stored, on a device that may have been chosen for what is kept of them: two layers of an 8B
# model, which take longer to copy than to quantise.
_MOST_PASSING_BYTES = 1 << 30


def read_quantised(
    layout: tuple[FusedTensor, ...],
    stored: Mapping[str, StoredTensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantisation: Quantisation,
    cache: QuantisedFiles | None,
    is_written: bool = False,
    most_ahead: int = 0,
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield the linears as they are kept, from the cache where it has them, and everything else as it is read.

    Args:
        is_written: Whether what the cache lacks is written as it is read; else it is left to the caller.
        most_ahead: As of :func:`read_fused`.

    Raises:
        InputError: a file is damaged, or a weight is stored quantised in another layout.
    """
    with ExitStack() as stack:
        copies = stack.enter_context(CopiesAhead()) if most_ahead else None
        reading = _QuantisedReading(
            CheckpointReader(stack, stored), device=device, quantisation=quantisation, copies=copies
        )

        def begin(fused: FusedTensor) -> Begun:
            if not fused.is_linear:
                return reading.reader.fused(fused, dtype=dtype, device=device, copies=copies)
            if is_stored(stored, fused.pieces[0].key):
                return reading.stored(fused)
            if cache is None:
                return reading.quantised(fused)
            return reading.cached(fused, cache, is_written=is_written)

        yield from in_order(layout, begin, most_ahead=most_ahead, most_passing_bytes=_MOST_PASSING_BYTES)


class _QuantisedReading:
    """Begins to read the linears of one checkpoint in one format."""

    def __init__(
        self,
        reader: CheckpointReader,
        *,
        device: torch.device,
        quantisation: Quantisation,
        copies: CopiesAhead | None,
    ) -> None:
        self.reader = reader
        self._device, self._quantisation, self._copies = device, quantisation, copies

    def stored(self, fused: FusedTensor) -> Begun:
        """Begin to read a linear that is stored as it is kept."""
        own = OwnCopies(self._copies)
        pieces = [
            read_stored(
                self.reader.mapped,
                piece.key,
                piece.shape,
                where=str(self.reader.file(piece.key)),
                device=self._device,
                copies=own,
            )
            for piece in fused.pieces
        ]

        def finish() -> list[StoredTensors]:
            own.wait()
            return pieces

        return Begun(finish=finish)

    def cached(self, fused: FusedTensor, cache: QuantisedFiles, *, is_written: bool) -> Begun:
        """Begin to read a linear from the cache, or from the checkpoint where the cache has none."""
        group, keys = fused.name.removesuffix(".weight"), [piece.key for piece in fused.pieces]
        read = cache.begin_reading(group, keys, device=self._device, copies=self._copies)
        begun = self.quantised(fused) if read is None else None

        def finish() -> list[StoredTensors]:
            kept = None if read is None else read()
            if kept is not None:
                return [kept[key] for key in keys]
            pieces = list((begun or self.quantised(fused)).finish())
            if is_written:
                cache.write(group, dict(zip(keys, pieces, strict=True)))
            return pieces

        return Begun(finish=finish, passing_bytes=0 if begun is None else begun.passing_bytes)

    def quantised(self, fused: FusedTensor) -> Begun:
        """Begin to read a linear that is quantised once it is there; without threads, one piece after the other."""
        waiting: deque[tuple[Tensor, OwnCopies]] = deque()
        if self._copies is not None:
            waiting.extend(self._weight(piece.key) for piece in fused.pieces)
        passing_bytes = sum(weight_NK.nbytes for weight_NK, _ in waiting)

        def finish() -> list[StoredTensors]:
            pieces: list[StoredTensors] = []
            for piece in fused.pieces:
                weight_NK, own = waiting.popleft() if waiting else self._weight(piece.key)
                own.wait()
                pieces.append(self._quantisation.quantise(weight_NK))
                # the next one is read into its memory
                del weight_NK
            return pieces

        return Begun(finish=finish, passing_bytes=passing_bytes)

    def _weight(self, key: str) -> tuple[Tensor, OwnCopies]:
        """Begin to copy a weight as it is stored; float64, whose last digits no format keeps, becomes float32."""
        source, own = self.reader.mapped(key), OwnCopies(self._copies)
        if source.dtype != torch.float64:
            return own.of(source, device=self._device), own
        weight_NK = torch.empty(source.shape, dtype=torch.float32, device=self._device)
        own.into(weight_NK, source)
        return weight_NK, own
