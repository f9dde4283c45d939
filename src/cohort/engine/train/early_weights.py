"""Weights of adapters written while others train or the best trials are compared: only their model cards wait for that.

An adapter of an 8B model takes a second to copy, transpose and bring to the disk, and users wait for the best one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from cohort.adapter_files.write import write_adapter_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import StorageFullError
from cohort.engine.train.result_trials import has_adapter_directory
from cohort.ranks.divided_states.divided_rows import DividedRows, whole_rows
from cohort.training.transfers.host_copies import HostCopies
from cohort.training.transfers.single_threaded import use_one_thread
from cohort.training.transfers.transfer_threads import ready_events
from cohort.training.trial import TrialSpec
from cohort.tuning.study import Study

__all__ = ["LEAST_EARLY", "MOST_EARLY", "EarlyWeights"]

# adapters whose weights are written before it is known which is the best: all that are usual where they are on a GPU,
# fewer where each takes host memory until it is written
MOST_EARLY, LEAST_EARLY = 16, 4
WRITERS = 4


class EarlyWeights:
    """Writes weights into the folders of their trials, in threads that end with the block."""

    def __init__(self, layout: AdapterLayout, *, folder_of: Callable[[int], Path]) -> None:
        """``folder_of`` returns the folder of a trial, which is made."""
        self._layout, self._folder_of = layout, folder_of
        # the best trials are compared meanwhile
        self._threads = ThreadPoolExecutor(WRITERS, "cohort-early-weights", initializer=use_one_thread)
        self._writing: dict[int, Future[None]] = {}
        self.copies = HostCopies()

    def __enter__(self) -> EarlyWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin_completed(self, trial_id: int, *, spec: AdapterSpec, weights_rD: Tensor) -> None:
        """Begin with a trial that has done all of its steps, where its weights take no host memory until then.

        They stay as they are: no later step can make it better.
        """
        if _is_elsewhere(weights_rD):
            self._begin(trial_id, spec=spec, weights_rD=weights_rD)

    def begin_first(
        self,
        study: Study,
        *,
        specs: Mapping[int, TrialSpec],
        best_of: Callable[[int], tuple[Tensor, int] | None],
    ) -> None:
        """Begin with the first trials by their own evaluations, of those that get an adapter directory.

        Args:
            best_of: Returns weights [r, D] and step of a trial's best checkpoint; all trials have ended.
        """
        first = [best.trial_id for best in study.leaders() if has_adapter_directory(study.reason(best.trial_id))]
        for place, trial_id in enumerate(first[:MOST_EARLY]):
            kept = best_of(trial_id)
            if kept is not None and place >= LEAST_EARLY and not _is_elsewhere(kept[0]):
                break
            if kept is not None and trial_id not in self._writing:
                self._begin(trial_id, spec=specs[trial_id].adapter, weights_rD=kept[0])

    def _begin(self, trial_id: int, *, spec: AdapterSpec, weights_rD: Tensor) -> None:
        # now: what the GPU is given after this is nothing that they have to wait for
        ready = ready_events([weights_rD])
        self._writing[trial_id] = self._threads.submit(self._write, trial_id, spec, weights_rD, ready)

    def close(self) -> None:
        """Write what has begun, and no more: the run goes on in another process, or not at all."""
        self._threads.shutdown(cancel_futures=True)

    def are_written(self, trial_id: int) -> bool:
        """Wait for the weights of a trial if they were begun; return whether they are there.

        Where the disk was full they are not, and the error comes when they are written again.
        """
        with contextlib.suppress(StorageFullError, KeyError):
            self._writing.pop(trial_id).result()
            return True
        return False

    def _write(
        self, trial_id: int, spec: AdapterSpec, weights_rD: Tensor, ready: Mapping[torch.device, torch.cuda.Event]
    ) -> None:
        # here and not before: only as many as there are writers are in host memory
        weights_rD = whole_rows(weights_rD)
        if weights_rD.is_cuda:
            weights_rD = self.copies.copied({"weights": weights_rD}, ready)["weights"]
        folder = self._folder_of(trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        # those of the best one are flushed in `best/`
        write_adapter_weights(folder, layout=self._layout, spec=spec, weights_rD=weights_rD, is_flushed=False)


def _is_elsewhere(weights_rD: Tensor) -> bool:
    """Return whether weights take no memory of this host before they are written, or that of their ranks."""
    return weights_rD.is_cuda or isinstance(weights_rD, DividedRows)
