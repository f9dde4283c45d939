"""Measures the memory that passes take, and recognises the errors that say there is not enough.

A GPU's allocator does both. A CPU has no such allocator, so where the user sets a limit a meter stands in for it: it
counts the storage of every tensor that a pass makes, and raises beyond the limit, in the middle of a forward or
backward pass, as a GPU does.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cohort.core.errors import MemoryLimitError
from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.core.process.freed_memory import keep_freed_memory
from cohort.core.units import format_bytes

__all__ = [
    "DeviceMemory",
    "PassObservation",
    "StorageMeter",
    "copied_where_there_is_room",
    "is_out_of_memory",
    "release_cached",
]

_T = TypeVar("_T")

# the words of libraries other than torch's allocator when the device, or the host, has nothing left
_WORDS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
# asking the allocator costs some 0.1 ms, which shows on passes of a small model: the first 32 passes are measured;
# afterwards, sample every 16th pass
_ALWAYS, _EVERY = 32, 16
_MOST_KEPT = 512


def copied_where_there_is_room(copy: Callable[[bool], _T], *, on_device: bool) -> _T:
    """Return ``copy(True)``, a copy on the device, or ``copy(False)``, one on the host, where the device is full.

    Args:
        on_device: False for the host in any case.
    """
    if on_device:
        # a full device is no error: the copy goes to the host instead
        with suppress(torch.OutOfMemoryError):
            return copy(True)
    return copy(False)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that memory ran out: a GPU's, the host's, or the limit a user set."""
    if isinstance(error, torch.OutOfMemoryError | MemoryLimitError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def release_cached(device: torch.device) -> None:
    """Free the memory of a failed pass. Call it outside its ``except`` block: the exception holds the pass's frames."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class StorageMeter(TorchDispatchMode):
    """Counts the bytes of storage made while it is entered, until each is freed, then or later.

    Attributes:
        live_bytes: Bytes that are not freed yet.
        peak_bytes: The most of them since :meth:`reset_peak`.
    """

    def __init__(self, *, limit_bytes: int | None = None, base_bytes: int = 0) -> None:
        """Raise where these bytes and ``base_bytes``, which exist already, are more than ``limit_bytes``."""
        super().__init__()
        self._limit_bytes, self._base_bytes = limit_bytes, base_bytes
        self._sizes: dict[int, int] = {}
        self._makes_views: dict[Any, bool] = {}
        self.live_bytes = self.peak_bytes = 0

    def reset_peak(self) -> None:
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        makes_views = self._makes_views.get(func)
        if makes_views is None:
            # in-place operations and views return storage that is counted already, or older than the meter
            makes_views = any(value.alias_info is not None for value in func._schema.returns)
            self._makes_views[func] = makes_views
        if not makes_views:
            for value in made if isinstance(made, tuple | list) else (made,):
                if isinstance(value, Tensor):
                    self._count(value)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = num_bytes = storage.nbytes()
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, key).atexit = False
        if self._limit_bytes is not None and self._base_bytes + self.live_bytes > self._limit_bytes:
            raise MemoryLimitError(
                f"{format_bytes(num_bytes)} more make {format_bytes(self._base_bytes + self.live_bytes)} in use, above "
                f"the limit of {format_bytes(self._limit_bytes)}"
            )

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key, 0)


class PassObservation:
    """Measures one pass; does nothing where ``take_peak`` is None."""

    def __init__(self, take_peak: Callable[[], int] | None) -> None:
        self._take_peak = take_peak
        self.forward_bytes = 0

    def forward_done(self) -> None:
        """Say that the losses exist: the backward pass comes next."""
        if self._take_peak is not None:
            self.forward_bytes = self._take_peak()


class DeviceMemory:
    """Watches the passes of one executor. On a CPU without a limit it does nothing.

    Attributes:
        highest_bytes: The most that was allocated during a measured pass, including what was allocated before it.
        before_pass: Called before each pass.
    """

    def __init__(self, device: torch.device | str, *, limit_bytes: int | None = None, base_bytes: int = 0) -> None:
        """Watch ``device``.

        Args:
            limit_bytes: On a CPU, the most that base model, bank and passes may take together. On a GPU the
                allocator's limit holds.
            base_bytes: On a CPU, the bytes of base model and bank.
        """
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self._meter: StorageMeter | None = None
        if self.device.type == "cpu" and limit_bytes is not None:
            self._meter = StorageMeter(limit_bytes=limit_bytes, base_bytes=base_bytes)
        self._peaks: deque[PassPeak] = deque(maxlen=_MOST_KEPT)
        self.before_pass: Callable[[], None] = lambda: None
        self._num_passes = self._most_rows = self._before = 0
        self.highest_bytes = 0

    @property
    def can_observe(self) -> bool:
        return self._meter is not None or self.device.type == "cuda"

    def take_peaks(self) -> tuple[PassPeak, ...]:
        """Return what was measured since the last call."""
        taken = tuple(self._peaks)
        self._peaks.clear()
        return taken

    def observe_next(self, count: int) -> None:
        """Measure the next ``count`` passes whatever their size."""
        self._num_passes = min(self._num_passes, _ALWAYS - count)

    @contextmanager
    def observe(self, kind: PassKind, size: PassSize | None) -> Iterator[PassObservation]:
        """Watch one pass; a pass that raises leaves no record.

        Args:
            size: What its memory depends on. With None it counts against the limit, and nothing is recorded.
        """
        self.before_pass()
        wanted = None if size is None or not self._is_wanted(size) else size
        observed = PassObservation(None if wanted is None else self._take_peak)
        with self._meter or nullcontext():
            if wanted is not None:
                self._begin()
            yield observed
        if wanted is not None:
            last, trains = self._take_peak(), kind is PassKind.TRAIN
            forward_bytes, backward_bytes = (observed.forward_bytes, last) if trains else (last, 0)
            self._peaks.append(
                PassPeak(kind=kind, size=wanted, forward_bytes=forward_bytes, backward_bytes=backward_bytes)
            )

    def _is_wanted(self, size: PassSize) -> bool:
        if not self.can_observe:
            return False
        self._num_passes += 1
        # a larger pass than any before may be the one that tells what fits
        wanted = self._num_passes <= _ALWAYS or self._num_passes % _EVERY == 0 or size.num_rows > self._most_rows
        self._most_rows = max(self._most_rows, size.num_rows)
        return wanted

    def _begin(self) -> None:
        if self._meter is not None:
            self._meter.reset_peak()
            self._before = self._meter.live_bytes
        else:
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)

    def _take_peak(self) -> int:
        """Return the maximum beyond the pass's start, and start a new one."""
        if self._meter is not None:
            peak = self._meter.peak_bytes
            self._meter.reset_peak()
        else:
            peak = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self.highest_bytes = max(self.highest_bytes, peak)
        return peak - self._before
