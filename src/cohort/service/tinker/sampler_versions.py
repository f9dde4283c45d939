"""Versions of models in memory: published to the pool that is served, and known to clients as samplers."""

from __future__ import annotations

import contextlib

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.service.tinker.checkpoints import Checkpoint
from cohort.service.tinker.client_sessions import (
    ClientSessions,
    Sampler,
    TrainedModel,
    UnknownSessionError,
    measured_name,
)
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_registry import UnknownAdapterError

__all__ = ["SamplerVersions"]


class SamplerVersions:
    """Keeps what clients sample from. Its methods may wait for the pool."""

    def __init__(self, trainer: ClientTrainer, pool: AdapterPool, sessions: ClientSessions) -> None:
        self._trainer, self._pool, self._sessions = trainer, pool, sessions

    @property
    def _layout(self) -> AdapterLayout:
        return self._trainer.executor.layout

    def publish(self, model: TrainedModel, sampler_id: str, weights_rD: Tensor) -> None:
        """Give the pool a version, whose weights stay where they are; those of the model before it go to the host.

        So a device holds the last version of each model, and those that the pool has in slots.
        """
        for before in tuple(model.snapshots):
            sampler = self._sessions.samplers.get(before)
            if sampler is not None and sampler.adapter is not None:
                # its session may end meanwhile
                with contextlib.suppress(UnknownAdapterError):
                    sampler.weights_rD = self._pool.move_to_host(sampler.adapter)
        self._pool.publish_rows(sampler_id, model.spec, weights_rD)

    def keep(self, model: TrainedModel, sampler_id: str, weights_rD: Tensor) -> None:
        """Let clients sample from a version that was published.

        Raises:
            UnknownSessionError: the session of the model has ended meanwhile; the version is dropped.
        """
        sampler = Sampler(
            sampler_id=sampler_id, adapter=sampler_id, model_id=model.model_id, spec=model.spec, weights_rD=weights_rD
        )
        if model.model_id not in self._sessions.models:
            self.withdraw(sampler)
            raise UnknownSessionError(f"model {model.model_id!r} is gone; its session has ended")
        if (oldest := self._sessions.add_version(model, sampler)) is not None:
            self.forget(oldest)

    def open(self, sampler_id: str, checkpoint: Checkpoint | None) -> Sampler:
        """Return what samples from a checkpoint, or from the base model; reads files."""
        if checkpoint is None:
            return Sampler(sampler_id=sampler_id, adapter=None)
        adapter = read_adapter(checkpoint.folder)
        self._pool.publish(sampler_id, adapter)
        return Sampler(
            sampler_id=sampler_id,
            adapter=sampler_id,
            spec=adapter.spec,
            weights_rD=rank_rows_from_peft(self._layout, adapter),
            model_path=checkpoint.uri,
        )

    def forget(self, sampler_id: str) -> None:
        """Drop a version from memory; those on the disk can be opened again."""
        sampler = self._sessions.samplers.pop(sampler_id, None)
        if sampler is not None:
            self.withdraw(sampler)

    def withdraw(self, sampler: Sampler) -> None:
        """Take a version out of the pool."""
        if sampler.adapter is None:
            # the base model's
            return
        try:
            self._pool.unload(sampler.adapter)
        except UnknownAdapterError:
            return
        self._trainer.drop(measured_name(sampler.sampler_id))
