"""Reads the tensors of a checkpoint in the order of the decoder's layout, several ahead of the one that is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.models.checkpoint.copies_ahead import CopiesAhead, OwnCopies
from cohort.models.checkpoint.safetensors_files import StoredTensor
from cohort.models.checkpoint_layout import FusedTensor
from cohort.models.weight_formats.weight_format import StoredTensors

__all__ = ["MOST_AHEAD", "Begun", "CheckpointReader", "FusedContent", "in_order", "read_fused"]

FusedContent = Tensor | Sequence[StoredTensors]
"""A fused tensor, or what a format keeps of each of its pieces."""

# fused tensors that are copied while the one before them is taken: there is room for all, but not long before
MOST_AHEAD = 8


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A fused tensor whose copies have begun.

    Attributes:
        finish: Waits for them and returns the content; called once.
        passing_bytes: Bytes of the device that the copies take and the content does not.
    """

    finish: Callable[[], FusedContent]
    passing_bytes: int = 0


def in_order(
    layout: tuple[FusedTensor, ...],
    begin: Callable[[FusedTensor], Begun],
    *,
    most_ahead: int,
    most_passing_bytes: int | None = None,
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield the tensors of ``layout``, of which at most ``most_ahead`` begin before the one before them is taken.

    Args:
        most_passing_bytes: Beyond these none begins ahead; None for no limit.
    """
    begun: deque[tuple[FusedTensor, Begun]] = deque()

    def is_enough() -> bool:
        passing = sum(each.passing_bytes for _, each in begun)
        return len(begun) > most_ahead or (most_passing_bytes is not None and passing > most_passing_bytes)

    for fused in layout:
        begun.append((fused, begin(fused)))
        while begun and is_enough():
            first, content = begun.popleft()
            yield first, content.finish()
    while begun:
        first, content = begun.popleft()
        yield first, content.finish()


class CheckpointReader:
    """Reads tensors of open checkpoint files, each into memory of its own: see :class:`OwnCopies`."""

    def __init__(self, stack: ExitStack, stored: Mapping[str, StoredTensor]) -> None:
        self._stack, self._stored = stack, stored
        self._opened: dict[Path, tuple[Any, set[str]]] = {}

    def fused(
        self, fused: FusedTensor, *, dtype: torch.dtype, device: torch.device, copies: CopiesAhead | None
    ) -> Begun:
        """Begin to read a fused tensor in ``dtype``.

        Raises:
            InputError: its file is damaged.
        """
        tensor, own = torch.empty(fused.shape, dtype=dtype, device=device), OwnCopies(copies)
        rows = tensor.split([piece.shape[0] for piece in fused.pieces])
        for place, piece in zip(rows, fused.pieces, strict=True):
            own.into(place, self.mapped(piece.key))

        def finish() -> Tensor:
            own.wait()
            return tensor

        return Begun(finish=finish)

    def file(self, key: str) -> Path:
        """Return where the tensor ``key`` is stored."""
        return self._stored[key].file

    def mapped(self, key: str) -> Tensor:
        """Return the tensor ``key`` as its file is mapped.

        Raises:
            InputError: its file is damaged.
        """
        file = self.file(key)
        try:
            if file not in self._opened:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
                self._opened[file] = (handle, set(handle.keys()))
            handle, keys = self._opened[file]
            found: Tensor = handle.get_tensor(key if key in keys else key.removeprefix("model."))
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error
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

    Raises:
        InputError: a file is damaged.
    """
    with ExitStack() as stack:
        reader = CheckpointReader(stack, stored)
        copies = stack.enter_context(CopiesAhead()) if most_ahead else None
        yield from in_order(
            layout,
            lambda fused: reader.fused(fused, dtype=dtype, device=device, copies=copies),
            most_ahead=most_ahead,
        )
