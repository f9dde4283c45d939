"""Which weights of a checkpoint are no finite numbers: all of them as they are loaded, or a part of them before that.

One such weight makes every loss NaN. Loading looks at each tensor, where it costs a fortieth of the copy; a check of a
task reads a part of a large model only, spread over all of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.core.units import counted, format_bytes
from cohort.models.checkpoint.checkpoint_reading import FusedContent
from cohort.models.checkpoint.safetensors_files import StoredTensor, read_headers
from cohort.models.checkpoint_layout import FusedTensor

__all__ = ["CheckedWeights", "checked_weights", "non_finite_weights", "refusing_non_finite", "require_finite"]

# read by a check in well under a second, once the files are in memory
_CHECKED_BYTES = 256 << 20
# windows of each tensor that a check reads: damage is rarely in the first rows alone
_WINDOWS = 3
_MOST_NAMED = 5
_HINT = "Fetch the model's files again; where you trained it yourself, go back to weights from before it diverged."


@dataclass(frozen=True, kw_only=True)
class CheckedWeights:
    """How much of a model was read to look for NaN and infinities, in bytes, and what was found.

    Attributes:
        problems: One for each tensor that has some.
    """

    read_bytes: int
    total_bytes: int
    problems: tuple[Problem, ...]

    @property
    def text(self) -> str:
        """Return what is known of the weights where no problem was found."""
        if self.read_bytes >= self.total_bytes:
            return f"all finite ({format_bytes(self.total_bytes)} read)"
        read, total = format_bytes(self.read_bytes), format_bytes(self.total_bytes)
        return f"finite in the {read} of {total} that were read here; a run looks at all of them"


def checked_weights(folder: Path, *, most_bytes: int = _CHECKED_BYTES) -> CheckedWeights:
    """Look for weights that are no finite numbers in at most about ``most_bytes`` of a model's files.

    A model up to that size is read whole. Of a larger one each tensor gives the same share, from three places in it.
    """
    stored = read_headers(folder).tensors
    sizes: dict[Path, int] = {file: file.stat().st_size for file in {tensor.file for tensor in stored.values()}}
    total = sum(sizes.values())
    share = min(1.0, most_bytes / total) if total else 1.0
    bad: list[str] = []
    read = 0
    for file in sizes:
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - a handle of files is no mapping
                for window in _windows(weights.get_slice(name), share=share):
                    read += window.nbytes
                    if not _is_finite(window):
                        bad.append(name)
                        break
    # headers are a part of the files, and all of them was read
    return CheckedWeights(
        read_bytes=total if share == 1.0 else read, total_bytes=total, problems=tuple(_problems(bad, stored))
    )


def non_finite_weights(folder: Path) -> list[str]:
    """Return the names of the tensors of ``folder`` with a NaN or an infinity, in the order of their files."""
    found = []
    for file in dict.fromkeys(tensor.file for tensor in read_headers(folder).tensors.values()):
        # one tensor at a time: the whole model may not fit into memory twice
        with safe_open(file, framework="pt") as weights:
            names = weights.keys()
            found += [name for name in names if not _is_finite(weights.get_tensor(name))]
    return found


def require_finite(tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Check the tensors of a model that another library loaded from ``folder``.

    Raises:
        InputError: one holds NaN or an infinity; each is named.
    """
    bad = [name for name, values in tensors if not _is_finite(values)]
    if bad:
        raise InputError(list(_problems(bad, read_headers(folder).tensors)))


def refusing_non_finite(
    read: Iterable[tuple[FusedTensor, FusedContent]], stored: Mapping[str, StoredTensor]
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield the tensors of a model that is being loaded; refuse it behind the last one if one was not finite.

    Raises:
        InputError: a tensor holds NaN or an infinity; each is named with its file.
    """
    keys: list[str] = []
    ends: list[Tensor] = []
    for fused, content in read:
        for key, values in _by_piece(fused, content):
            keys.append(key)
            ends.append(_ends(values))
        yield fused, content
    # asked once: on a GPU each question waits for its answer
    finite: list[bool] = []
    if ends:
        device = ends[0].device
        finite = torch.stack([end.double().to(device) for end in ends]).isfinite().all(dim=1).tolist()
    bad = list(dict.fromkeys(key for key, is_finite in zip(keys, finite, strict=True) if not is_finite))
    if bad:
        raise InputError(list(_problems(bad, stored)))


def _by_piece(fused: FusedTensor, content: FusedContent) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers of each checkpoint tensor; of a quantised one what is NaN where a weight was no number."""
    if isinstance(content, Tensor):
        rows: Sequence[Tensor] = content.split([piece.shape[0] for piece in fused.pieces])
        yield from ((piece.key, own) for piece, own in zip(fused.pieces, rows, strict=True) if own.numel())
        return
    for piece, kept in zip(fused.pieces, content, strict=True):
        for tensor in kept.values():
            if not tensor.is_floating_point() or not tensor.numel():
                # whole numbers are codes, whose scale is NaN or infinite
                continue
            yield piece.key, tensor if tensor.element_size() > 1 else _largest_code(tensor)


def _largest_code(codes: Tensor) -> Tensor:
    """Return NaN [1] where one of e4m3's codes is, else 0: a kernel's maximum may have passed over the weight's NaN."""
    largest = (codes.view(torch.uint8) & 0x7F).amax().reshape(1)
    return torch.where(largest == 0x7F, math.nan, 0.0)


def _ends(values: Tensor) -> Tensor:
    """Return the least and the greatest value, both NaN where one is: one pass, and no memory."""
    return torch.stack(torch.aminmax(values))


def _is_finite(values: Tensor) -> bool:
    if not values.is_floating_point() or not values.numel():
        return True
    # 8-bit floats have no such reduction
    return bool(_ends(values.float() if values.element_size() == 1 else values).isfinite().all())


def _windows(stored: Any, *, share: float) -> Iterator[Tensor]:
    """Yield the parts of a stored tensor that are read: all of it, or rows from its beginning, middle and end."""
    shape = stored.get_shape()
    rows = shape[0] if shape else 0
    taken = math.ceil(rows * share / _WINDOWS)
    if share == 1.0 or taken * _WINDOWS >= rows:
        yield stored[:] if shape else stored[...]
        return
    for place in range(_WINDOWS):
        start = (rows - taken) * place // (_WINDOWS - 1)
        yield stored[start : start + taken]


def _problems(bad: Sequence[str], stored: Mapping[str, StoredTensor]) -> Iterator[Problem]:
    for number, key in enumerate(bad[:_MOST_NAMED], start=1):
        # a bare decoder's tensors lack the prefix in their file
        place = stored.get(key) or stored.get(key.removeprefix("model."))
        left = len(bad) - _MOST_NAMED if number == _MOST_NAMED else 0
        others = f", as in {counted(left, 'more tensor')}" if left > 0 else ""
        yield Problem(
            where=key if place is None else f"{place.file}: {key}",
            found=f"NaN or infinite weights{others}",
            allowed="finite numbers",
            hint=_HINT,
        )
