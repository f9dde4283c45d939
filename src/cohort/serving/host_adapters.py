"""Adapters in host memory: the most recently used stay, and the others are read from disk again by a thread.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError
from cohort.kernels.staging import pinned
from cohort.serving.adapter_registry import AdapterHandle, AdapterVersion, load_version
from cohort.serving.ranks import KeptAdapter, ServingRanks

__all__ = ["HostAdapters"]


class HostAdapters:
    """What one pool keeps in host memory. But for :meth:`kept`, callers hold the pool's lock."""

    def __init__(
        self,
        *,
        layout: AdapterLayout,
        most_adapters: int,
        most_rank: int,
        ranks: ServingRanks,
        dtype: torch.dtype,
        is_pinned: bool,
        lock: threading.RLock,
        changed: threading.Event,
    ) -> None:
        """Keep nothing yet.

        Args:
            layout: The linears of the whole model.
            most_adapters: Most whose weights stay, not counting those that no directory has.
            most_rank: The largest rank that is read.
            dtype: What the weights are kept in.
            is_pinned: Whether they are copied to a GPU from there.
            lock: The pool's; the reading thread takes it once it has read.
            changed: Set when an adapter has been read, or could not be.
        """
        self._layout, self._most_adapters, self._most_rank = layout, most_adapters, most_rank
        self._ranks, self._dtype, self._is_pinned = ranks, dtype, is_pinned
        self._lock, self._changed = lock, changed
        # the least recently used first
        self._versions: OrderedDict[Hashable, AdapterVersion] = OrderedDict()
        self._reading: set[Hashable] = set()
        self._failures: list[tuple[Hashable, str]] = []
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cohort-adapters")

    def kept(self, spec: AdapterSpec, rows_rD: Tensor) -> KeptAdapter:
        """Return an adapter as this rank keeps it; the others take their parts, which may last.

        Rows that are on the device stay there.
        """
        kept = self._ranks.keep(spec, rows_rD.to(self._dtype))
        return replace(kept, rows_rD=pinned(kept.rows_rD)) if self._is_pinned and kept.is_on_host else kept

    def keep(self, version: AdapterVersion, *, arriving: Collection[Hashable] = ()) -> None:
        """Keep a version as the last used one, and drop what is too much; never what is ``arriving`` on the device."""
        self._versions[version.key] = version
        for key, other in tuple(self._versions.items()):
            if len(self._versions) <= self._most_adapters:
                return
            # weights without a directory could not be read again
            if other.path is not None and key != version.key and key not in arriving:
                other.kept = None
                del self._versions[key]

    def use(self, version: AdapterVersion) -> None:
        """Note that a version was used now."""
        if version.key in self._versions:
            self._versions.move_to_end(version.key)

    def forget(self, version: AdapterVersion) -> None:
        """Keep a version no longer; it will not be asked for again."""
        self._versions.pop(version.key, None)

    def read_again(self, handle: AdapterHandle, version: AdapterVersion, *, arriving: Collection[Hashable]) -> None:
        """Have the thread read a version that was dropped, once; the event is set when it has."""
        if version.key not in self._reading:
            self._reading.add(version.key)
            self._reader.submit(self._read, handle, version, arriving)

    def take_failures(self) -> list[tuple[Hashable, str]]:
        """Return, and forget, which adapters could not be read again, and why."""
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self, handle: AdapterHandle, version: AdapterVersion, arriving: Collection[Hashable]) -> None:
        assert version.path is not None, "weights without a path are never dropped"
        problem, kept = None, None
        try:
            spec, rows_rD, digest = load_version(version.path, layout=self._layout, most_rank=self._most_rank)
            if digest != version.digest:
                problem = f"the files in {version.path} have changed since the adapter was loaded; load it again"
            else:
                kept = self.kept(spec, rows_rD)
        except (CohortError, OSError) as error:
            problem = str(error)
        with self._lock:
            self._reading.discard(version.key)
            if kept is None:
                self._failures.append((handle, f"adapter {handle.name!r} cannot be read again: {problem}"))
            else:
                version.kept = kept
                if not version.is_retired:
                    self.keep(version, arriving=arriving)
            self._changed.set()
