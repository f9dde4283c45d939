"""The base model, read by a thread while rows are tokenised, where nothing that is decided later can move it.

Where a model will be follows from the memory that was free before anything was read (:attr:`Machine.memory_bytes`), so
a load that is under way changes no decision. It begins only where the whole model goes to one device with as much
memory to spare as it takes, and ends, with its memory freed, where the task is refused for a row.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch

from cohort.core.cache_directory import default_cache_directory
from cohort.core.process.daemon_thread import begin_in_thread
from cohort.machine.machine import Machine
from cohort.memory.size_inputs import SizeRequest
from cohort.models.config import DecoderConfig
from cohort.models.counts import weight_bytes
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import load_decoder
from cohort.prepare.fingerprints import start_fingerprint
from cohort.tasks.task_file import TaskFile

__all__ = ["COLLECTING_BYTES", "WeightsAhead", "has_room_to_load", "on_same_gpu", "weights_ahead"]

_T = TypeVar("_T")

# passes of 16,384 tokens through a few layers of a model with wide ones, without its weights
COLLECTING_BYTES = 16 << 30


class WeightsAhead:
    """A model that a thread loads, from :meth:`begin` until it is taken or stopped; at most one at a time."""

    def __init__(self, task: TaskFile, *, request: SizeRequest, is_loaded: bool = False) -> None:
        """Load for ``task``; ``request`` names the processes that train. Where a model is loaded, nothing begins."""
        self._task, self._request, self._is_loaded = task, request, is_loaded
        self._stop = threading.Event()
        self._loading: Future[Decoder] | None = None
        self._key: tuple[Path, torch.device, str, str] | None = None
        self._hashing: tuple[Path, Future[str]] | None = None

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded: one device will hold it as a whole."""
        return self._loading is not None

    def begin(self, directory: Path, config: DecoderConfig, machine: Machine) -> None:
        """Begin to hash the model's files, which a record waits for, and to load them.

        They are loaded if the model will be on one device as it is whatever the rows are.
        """
        if self._is_loaded or self._loading is not None:
            return
        self._hashing = directory, start_fingerprint(directory)
        if not self._is_certain(config, machine):
            return
        self._key = _key(directory, machine)

        def read() -> Decoder:
            return load_decoder(
                directory,
                dtype=machine.dtype,
                device=machine.device,
                weight_format=machine.quantization,
                cache_directory=default_cache_directory(),
                room_bytes=self._task.memory.limit,
                stop=self._stop,
            )

        self._loading = begin_in_thread("cohort-loading", on_same_gpu(read, machine.device))

    def fingerprint(self, directory: Path) -> Future[str]:
        """Return :func:`~cohort.prepare.fingerprints.model_fingerprint` of a model, begun here or now."""
        hashing, self._hashing = self._hashing, None
        return hashing[1] if hashing is not None and hashing[0] == directory else start_fingerprint(directory)

    def take(self, directory: Path, machine: Machine, *, is_wanted: bool) -> Future[Decoder] | None:
        """Return the model that is being loaded, which is the caller's from now on; None where it is another or none.

        Args:
            is_wanted: Whether the model will be there as a whole; if not, what was begun is stopped and freed.
        """
        if not is_wanted or self._key != _key(directory, machine):
            self.stop()
        loading, self._loading = self._loading, None
        return loading

    def stop(self) -> None:
        """End a load that was not taken, and wait until its memory is free."""
        loading, self._loading = self._loading, None
        if loading is None:
            return
        self._stop.set()
        error = loading.exception()
        if error is not None:
            # its frames keep the weights that were read, and are in a circle with it
            error.with_traceback(None)

    def _is_certain(self, config: DecoderConfig, machine: Machine) -> bool:
        alone = self._request.launched is None and (self._request.num_ranks or max(1, machine.num_gpus)) == 1
        # a CPU that quantises would take from those who tokenise, and the order of its sums may follow from its threads
        is_copied = machine.quantization == PLAIN.name or machine.device.type == "cuda"
        # what transformers loads, it loads with settings of the whole process
        is_native = config.bridged is None
        return (
            alone
            and is_copied
            and is_native
            and has_room_to_load(self._task, config, machine, there_bytes=machine.memory_bytes)
        )


@contextlib.contextmanager
def weights_ahead(task: TaskFile, *, request: SizeRequest, is_loaded: bool = False) -> Iterator[WeightsAhead]:
    """Yield what may load the model of ``task``; what is not taken is stopped and freed."""
    ahead = WeightsAhead(task, request=request, is_loaded=is_loaded)
    try:
        yield ahead
    finally:
        ahead.stop()


def has_room_to_load(task: TaskFile, config: DecoderConfig, machine: Machine, *, there_bytes: int) -> bool:
    """Return whether passes that are only collected have room next to the model, with as much to spare as it takes.

    Of a quantised model they are collected once it is there.
    """
    if task.memory.limit is not None:
        return False
    is_on_gpu = machine.device.type == "cuda"
    taken = weight_bytes(
        config,
        dtype=getattr(torch, machine.dtype),
        weight_format=machine.quantization,
        room_bytes=machine.memory_bytes if is_on_gpu else 0,
    )
    collected = COLLECTING_BYTES if is_on_gpu and machine.quantization == PLAIN.name else 0
    return there_bytes >= 2 * taken + collected


def _key(directory: Path, machine: Machine) -> tuple[Path, torch.device, str, str]:
    """Return what tells one model that may be loaded from another."""
    return directory, machine.device, machine.dtype, machine.quantization


def on_same_gpu(load: Callable[[], _T], device: torch.device) -> Callable[[], _T]:
    """Return ``load`` for another thread: each thread has a current GPU of its own."""
    if device.type != "cuda":
        return load
    gpu = torch.cuda.current_device() if device.index is None else device.index

    def there() -> _T:
        with torch.cuda.device(gpu):
            return load()

    return there
