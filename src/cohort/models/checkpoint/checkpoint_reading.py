"""Reads the tensors of a checkpoint in the order of the decoder's layout, as they are or as a format keeps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.models.checkpoint.copies_ahead import CopiesAhead
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.safetensors_files import StoredTensor
from cohort.models.checkpoint.stored_nf4 import is_stored, read_stored
from cohort.models.checkpoint_layout import FusedTensor, Piece
from cohort.models.weight_formats.weight_format import Quantisation, StoredTensors

__all__ = ["MOST_AHEAD", "FusedContent", "read_fused", "read_quantised"]

FusedContent = Tensor | Sequence[StoredTensors]
"""A fused tensor, or what a format keeps of each of its pieces."""

# fused tensors that are copied while the one before them is taken: there is room for all, but not long before
MOST_AHEAD = 8


class _CheckpointReader:
    """Reads tensors of open checkpoint files, each into memory of its own.

    Mapped ones could be changed or cut short by other processes, and bits may depend on the alignment that only an
    allocator promises.
    """

    def __init__(self, stack: ExitStack, stored: Mapping[str, StoredTensor]) -> None:
        self._stack, self._stored = stack, stored
        self._opened: dict[Path, tuple[Any, set[str]]] = {}

    def copy_into(self, target: Tensor, key: str) -> None:
        """Copy the tensor ``key`` into ``target``.

        Raises:
            InputError: its file is damaged.
        """
        target.copy_(self._of_file(key))

    def begin_copy(self, copies: CopiesAhead, target: Tensor, key: str) -> Future[None] | None:
        """Begin to copy the tensor ``key`` into ``target``; None where that took a conversion, and is done.

        Raises:
            InputError: its file is damaged.
        """
        source = self._of_file(key)
        if source.dtype == target.dtype and source.shape == target.shape and source.is_contiguous():
            return copies.begin(target, source)
        target.copy_(source)
        return None

    def quantised(self, piece: Piece, *, device: torch.device) -> StoredTensors:
        """Return what is kept of a weight that is stored quantised.

        Raises:
            InputError: its file is damaged, or it is stored in another layout.
        """
        file = self._stored[piece.key].file
        try:
            return read_stored(
                lambda key: self._mapped(self._stored[key].file, key),
                piece.key,
                piece.shape,
                where=str(file),
                device=device,
            )
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error

    def _of_file(self, key: str) -> Tensor:
        file = self._stored[key].file
        try:
            return self._mapped(file, key)
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error

    def _mapped(self, file: Path, key: str) -> Tensor:
        if file not in self._opened:
            handle = self._stack.enter_context(safe_open(file, framework="pt"))
            self._opened[file] = (handle, set(handle.keys()))
        handle, keys = self._opened[file]
        found: Tensor = handle.get_tensor(key if key in keys else key.removeprefix("model."))
        return found


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(
        Problem(
            where=str(file),
            found=f"a damaged file ({error})",
            allowed="a whole safetensors file",
            hint="Fetch it again.",
        )
    )


def _fused(fused: FusedTensor, reader: _CheckpointReader, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    tensor = torch.empty(fused.shape, dtype=dtype, device=device)
    row = 0
    for piece in fused.pieces:
        reader.copy_into(tensor[row : row + piece.shape[0]], piece.key)
        row += piece.shape[0]
    return tensor


def read_fused(
    layout: tuple[FusedTensor, ...],
    stored: Mapping[str, StoredTensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    most_ahead: int = 0,
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield the tensors of ``layout`` in its order.

    Args:
        most_ahead: Tensors that threads copy while the one before them is taken; they take memory of the device then.
    """
    with ExitStack() as stack:
        reader = _CheckpointReader(stack, stored)
        if not most_ahead:
            for fused in layout:
                yield fused, _fused(fused, reader, dtype=dtype, device=device)
            return
        copies = stack.enter_context(CopiesAhead())
        begun: deque[tuple[FusedTensor, Tensor, list[Future[None]]]] = deque()
        for place, fused in enumerate(layout):
            tensor = torch.empty(fused.shape, dtype=dtype, device=device)
            rows = tensor.split([piece.shape[0] for piece in fused.pieces])
            parts = [reader.begin_copy(copies, own, piece.key) for own, piece in zip(rows, fused.pieces, strict=True)]
            begun.append((fused, tensor, [part for part in parts if part is not None]))
            while begun and (len(begun) > most_ahead or place + 1 == len(layout)):
                first, content, copied = begun.popleft()
                for part in copied:
                    part.result()
                yield first, content


def read_quantised(
    layout: tuple[FusedTensor, ...],
    stored: Mapping[str, StoredTensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantisation: Quantisation,
    cache: QuantisedFiles | None,
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield the linears as they are kept, from the cache where it has them, and everything else as it is read."""
    with ExitStack() as stack:
        reader = _CheckpointReader(stack, stored)
        for fused in layout:
            if not fused.is_linear:
                yield fused, _fused(fused, reader, dtype=dtype, device=device)
                continue
            if is_stored(stored, fused.pieces[0].key):
                yield fused, [reader.quantised(piece, device=device) for piece in fused.pieces]
                continue
            group = fused.name.removesuffix(".weight")
            kept = None if cache is None else cache.read(group, device=device)
            if kept is None or kept.keys() != {piece.key for piece in fused.pieces}:
                kept = {}
                for piece in fused.pieces:
                    # float32 holds every dtype of a checkpoint but float64, whose last digits no format keeps
                    weight_NK = torch.empty(piece.shape, dtype=torch.float32, device=device)
                    reader.copy_into(weight_NK, piece.key)
                    kept[piece.key] = dict(quantisation.quantise(weight_NK))
                    del weight_NK
                if cache is not None:
                    cache.write(group, kept)
            yield fused, [kept[piece.key] for piece in fused.pieces]
