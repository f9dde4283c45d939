"""What passes take of a device's memory, and how it shows that there is not enough.

On a GPU both are the allocator's own. A CPU has no such allocator, so where the user sets a limit a meter stands in for
it: it counts the storage of every tensor that a pass makes, and throws where the limit is passed, in the midst of a
forward or backward pass as a GPU does.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cohort.core.errors import MemoryLimitError
from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.core.units import format_bytes

__all__ = ["DeviceMemory", "ObservedPass", "StorageMeter", "is_out_of_memory", "release_cached"]

# what libraries beside torch's allocator say when the device, or the host, has nothing left
_WORDS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
# asking the allocator costs some 0.1 ms, which shows on passes of a small model: after so many only every so-manieth
_ALWAYS, _EVERY = 32, 16
_MOST_KEPT = 512


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether ``error`` says that memory ran out: of a GPU, of the host, or of the limit a user set."""
    if isinstance(error, torch.OutOfMemoryError | MemoryLimitError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def release_cached(device: torch.device) -> None:
    """Give back what a failed pass held; call it when its exception is gone, for that holds the pass's frames."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class StorageMeter(TorchDispatchMode):
    """Counts bytes of storage made while it is entered, from their making to their end, wherever that is.

    Attributes:
        live_bytes: Counted now.
        peak_bytes: The most since :meth:`reset_peak`.
    """

    def __init__(self, *, limit_bytes: int | None = None, base_bytes: int = 0) -> None:
        """Count; with ``limit_bytes`` throw beyond it, ``base_bytes`` being there already."""
        super().__init__()
        self._limit_bytes, self._base_bytes = limit_bytes, base_bytes
        self._sizes: dict[int, int] = {}
        self._makes_views: dict[Any, bool] = {}
        self.live_bytes = self.peak_bytes = 0

    def reset_peak(self) -> None:
        """Let the maximum begin again at what is live."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out ``func`` and count what it made."""
        del types
        made = func(*args, **(kwargs or {}))
        makes_views = self._makes_views.get(func)
        if makes_views is None:
            # in-place operations and views return storage that is counted, or was there before
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
                f"{format_bytes(num_bytes)} more are {format_bytes(self._base_bytes + self.live_bytes)} in use, beyond "
                f"the limit of {format_bytes(self._limit_bytes)}"
            )

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key, 0)


class ObservedPass:
    """One pass under observation."""

    def __init__(self, memory: DeviceMemory | None, kind: PassKind, size: PassSize | None) -> None:
        self._memory, self._kind, self._size = memory, kind, size
        self._forward_bytes = 0

    def forward_done(self) -> None:
        """Say that the losses are there: what comes is the backward pass."""
        if self._memory is not None:
            self._forward_bytes = self._memory._take_peak()

    def _peak(self) -> PassPeak | None:
        if self._memory is None or self._size is None:
            return None
        last = self._memory._take_peak()
        trains = self._kind is PassKind.TRAIN
        return PassPeak(
            kind=self._kind,
            size=self._size,
            forward_bytes=self._forward_bytes if trains else last,
            backward_bytes=last if trains else 0,
        )


class DeviceMemory:
    """Watches the passes of one executor. On a CPU without a limit it does nothing at all.

    Attributes:
        highest_bytes: The most that was allocated during an observed pass, what was there before it included.
    """

    def __init__(self, device: torch.device | str, *, limit_bytes: int | None = None, base_bytes: int = 0) -> None:
        """Watch ``device``.

        Args:
            device: Of the executor.
            limit_bytes: On a CPU, the most that base model, bank and passes may take together. A GPU's limit is its
                allocator's.
            base_bytes: On a CPU, what base model and bank take.
        """
        self.device = torch.device(device)
        self._meter: StorageMeter | None = None
        if self.device.type == "cpu" and limit_bytes is not None:
            self._meter = StorageMeter(limit_bytes=limit_bytes, base_bytes=base_bytes)
        self._peaks: deque[PassPeak] = deque(maxlen=_MOST_KEPT)
        self._num_passes = self._most_rows = self._before = 0
        self.highest_bytes = 0

    @property
    def can_observe(self) -> bool:
        """Whether peaks can be known."""
        return self._meter is not None or self.device.type == "cuda"

    def take_peaks(self) -> tuple[PassPeak, ...]:
        """Return what was observed since the last call."""
        taken = tuple(self._peaks)
        self._peaks.clear()
        return taken

    def observe_next(self, count: int) -> None:
        """Observe the next ``count`` passes whatever their size."""
        self._num_passes = min(self._num_passes, _ALWAYS - count)

    @contextmanager
    def observe(self, kind: PassKind, size: PassSize | None) -> Iterator[ObservedPass]:
        """Watch one pass; one that is not finished is forgotten.

        Args:
            kind: What it is for.
            size: What its memory depends on; None: it counts against the limit, and nothing is recorded.
        """
        observed = ObservedPass(self if size is not None and self._is_wanted(size) else None, kind, size)
        if self._meter is None:
            self._begin(observed)
            yield observed
        else:
            with self._meter:
                self._begin(observed)
                yield observed
        peak = observed._peak()
        if peak is not None:
            self._peaks.append(peak)

    def _is_wanted(self, size: PassSize) -> bool:
        if not self.can_observe:
            return False
        self._num_passes += 1
        wanted = self._num_passes <= _ALWAYS or self._num_passes % _EVERY == 0 or size.num_rows > self._most_rows
        self._most_rows = max(self._most_rows, size.num_rows)
        return wanted

    def _begin(self, observed: ObservedPass) -> None:
        if observed._memory is None:
            return
        if self._meter is not None:
            self._meter.reset_peak()
            self._before = self._meter.live_bytes
        else:
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)

    def _take_peak(self) -> int:
        """Return the maximum beyond the pass's beginning and let it begin again."""
        if self._meter is not None:
            peak = self._meter.peak_bytes
            self._meter.reset_peak()
        else:
            peak = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self.highest_bytes = max(self.highest_bytes, peak)
        return peak - self._before
