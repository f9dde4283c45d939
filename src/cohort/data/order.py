"""Which rows make which optimizer step of a trial: a pure function of (seed, epoch), restartable at any step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cohort.core.seeds import derive_seed

__all__ = ["SampleOrder"]


class SampleOrder:
    """Shuffled batches of one trial, epoch after epoch.

    Every epoch visits each row once; its last batch is smaller where ``batch_size`` does not divide ``num_samples``
    (kept, as transformers' Trainer keeps it). Only the current epoch's permutation is held, so any step can be asked
    for at any time and a resumed trial needs nothing but its step number.

    Raises:
        ValueError: ``num_samples`` or ``batch_size`` is below 1.
    """

    def __init__(self, num_samples: int, *, seed: int, batch_size: int) -> None:
        if num_samples < 1 or batch_size < 1:
            raise ValueError(
                f"num_samples and batch_size must be at least 1, found {num_samples} and {batch_size}; "
                "check that the training rows are not empty"
            )
        self.num_samples, self.seed, self.batch_size = num_samples, seed, batch_size
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the rows."""
        return -(-self.num_samples // self.batch_size)

    def batch(self, step: int) -> list[int]:
        """Return the row indices of the 0-based global ``step``."""
        if step < 0:
            raise ValueError(f"step must be at least 0, found {step}")
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.batch_size
        return [int(index) for index in self.permutation(epoch)[start : start + self.batch_size]]

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of all rows in ``epoch``, int64 [num_samples]."""
        if epoch != self._epoch:
            # raw Philox words are fixed by its definition; Generator.permutation may change between numpy versions
            bits = np.random.Philox(key=derive_seed(self.seed, "order", epoch))
            words = bits.random_raw(self.num_samples)
            self._permutation = np.argsort(words, kind="stable").astype(np.int64)
            self._epoch = epoch
        return self._permutation
