"""Saving and loading for the Tinker client: models between the bank, the disk and the versions that are sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions, TrainedModel
from cohort.service.tinker.futures import Answer
from cohort.service.tinker.owners import ANYONE
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.schema import LoadWeights, SaveForSampler, SaveWeights
from cohort.service.tinker.training_calls import CREATION, TrainingCalls
from cohort.training.client_training.client_models import ModelState

__all__ = ["CheckpointCalls"]

OnLoaded = Callable[[TrainedModel, int, ModelState, Answer], Awaitable[None]]


async def _keep_nothing(model: TrainedModel, number: int, state: ModelState, answer: Answer) -> None:
    """Stand for a server that keeps no journal."""


class CheckpointCalls:
    """Carries out the calls that save and load models.

    Attributes:
        on_loaded: Keeps a model that was given a checkpoint's state, with the number of the call and its answer, before
            the call is answered: the checkpoint may be gone when the call is repeated.
    """

    def __init__(
        self, training: TrainingCalls, *, versions: SamplerVersions, sessions: ClientSessions, store: CheckpointStore
    ) -> None:
        self._training, self._versions, self._sessions, self._store = training, versions, sessions, store
        self.on_loaded: OnLoaded = _keep_nothing
        # by model and number, saves whose folders are not there yet
        self._writing: dict[tuple[str, int], Future[None]] = {}

    async def save(self, asked: SaveWeights, *, fingerprint: bytes) -> Answer:
        """Write a training checkpoint; the answer comes once it is on the disk."""
        return await self._save(asked, "weights", fingerprint=fingerprint)

    async def save_for_sampler(self, asked: SaveForSampler, *, fingerprint: bytes) -> Answer:
        """Keep a version to sample from: in memory, or on the disk where it has a name."""
        if asked.path is not None:
            return await self._save(asked, "sampler_weights", fingerprint=fingerprint)
        model = self._sessions.known_model(asked.model_id)
        executor = self._training.trainer.executor

        def copy() -> Tensor:
            # a copy on the device, in the dtype that is served: training goes on on the model's own rows
            return executor.models.weights(asked.model_id, dtype=executor.decoder.dtype)

        weights_rD: Tensor = await self._training.run(asked.model_id, asked.seq_id, fingerprint, copy)
        session_id = model.model_id.partition(":")[0]
        sampler_id = f"{session_id}:sample:{asked.sampling_session_seq_id}"
        # one after the other, so that the last few that are kept are the last ones
        async with model.saving:
            await asyncio.to_thread(self._versions.publish, model, sampler_id, weights_rD)
            self._versions.keep(model, sampler_id, weights_rD)
        return Answer(json={"type": "save_weights_for_sampler", "sampling_session_id": sampler_id})

    async def _save(self, asked: SaveWeights, kind: str, *, fingerprint: bytes) -> Answer:
        model = self._sessions.known_model(asked.model_id)
        written: Future[None] = Future()
        self._writing[asked.model_id, asked.seq_id] = written
        try:
            state = await self._state(asked, fingerprint=fingerprint)
            # those that wait are in the order of their calls: so are the folders that they leave
            async with model.saving:
                uri = await asyncio.to_thread(self._write, model, kind, asked, state)
        finally:
            del self._writing[asked.model_id, asked.seq_id]
            written.set_result(None)
        return Answer(json={"type": "save_weights" if kind == "weights" else "save_weights_for_sampler", "path": uri})

    async def _state(self, asked: SaveWeights, *, fingerprint: bytes) -> ModelState:
        models = self._training.trainer.executor.models

        def read() -> ModelState:
            return models.state(asked.model_id)

        state: ModelState = await self._training.run(asked.model_id, asked.seq_id, fingerprint, read)
        return state

    def _write(self, model: TrainedModel, kind: str, asked: SaveWeights, state: ModelState) -> str:
        name = self._store.check_name(asked.path)
        if kind == "weights" and not asked.overwrite and self._store.exists(model.model_id, kind, name):
            found = self._store.find(self._store.uri(model.model_id, kind, name), asker=ANYONE)
            # a call that was killed behind its writing is carried out again
            if found.about.get("call") != asked.seq_id:
                raise _wrong(
                    found=f"{name}, which exists",
                    allowed="a new name, or overwrite: true",
                    hint="Choose another name, or overwrite the checkpoint.",
                )
        about = {
            "user_metadata": asked.user_metadata,
            "run_metadata": model.metadata,
            "seed": model.seed,
            **model.trains,
            "call": asked.seq_id,
            "owner": self._sessions.owner_of(model.model_id),
            "base_model": self._training.base_model,
        }
        return self._store.save(
            model.model_id, kind, name, spec=model.spec, state=state, about=about, ttl_seconds=asked.ttl_seconds
        )

    async def load_new(self, asked: LoadWeights, *, model_id: str, fingerprint: bytes) -> Answer:
        """Make a model of a checkpoint."""
        checkpoint = self._store.find(asked.path, asker=self._sessions.owner_of(model_id))
        state = await asyncio.to_thread(self._store.load, checkpoint, optimizer=asked.optimizer)
        about = checkpoint.about
        trains = {name: bool(about.get(name, True)) for name in ("train_mlp", "train_attn")}
        model = self._training.described(
            {
                "model_id": model_id,
                "rank": int(about["rank"]),
                "seed": int(about["seed"]),
                "trains": trains,
                "metadata": asked.user_metadata,
            }
        )
        await self._training.make(model, state, fingerprint=fingerprint)
        self._sessions.models[model_id] = model
        answer = Answer(json={"type": "load_weights", "path": asked.path, "model_id": model_id})
        await self.on_loaded(model, CREATION, state, answer)
        return answer

    async def load_into(self, asked: LoadWeights, *, fingerprint: bytes) -> Answer:
        """Give a model that exists the state of a checkpoint."""
        assert asked.model_id is not None, "the route asks for it"
        model = self._sessions.known_model(asked.model_id)
        store, models = self._store, self._training.trainer.executor.models
        owner = self._sessions.owner_of(model.model_id)

        number = asked.seq_id or 1

        def load() -> ModelState:
            # what the model was saved under before is on the disk by now, or soon
            for (model_id, earlier), written in list(self._writing.items()):
                if model_id == model.model_id and earlier < number:
                    written.result()
            checkpoint = store.find(asked.path, asker=owner)
            if int(checkpoint.about["rank"]) != model.spec.r:
                raise _wrong(
                    found=f"{asked.path} of rank {checkpoint.about['rank']}",
                    allowed=f"a checkpoint of rank {model.spec.r}",
                    hint="Create a training client from the checkpoint instead.",
                )
            state = store.load(checkpoint, optimizer=asked.optimizer)
            models.load(model.model_id, state)
            return state

        state: ModelState = await self._training.run(model.model_id, number, fingerprint, load)
        answer = Answer(json={"type": "load_weights", "path": asked.path, "model_id": model.model_id})
        await self.on_loaded(model, number, state, answer)
        return answer


def _wrong(*, found: str, allowed: str, hint: str) -> InputError:
    return InputError(Problem(where="path", found=found, allowed=allowed, hint=hint))
