"""Training for the Tinker client: models made, passed, stepped, saved and loaded, each in the order of its calls."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import (
    PeftAdapter,
    peft_tensors,
    rank_rows_from_peft,
    read_adapter,
)
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.service.tinker.checkpoints import Checkpoint, CheckpointStore
from cohort.service.tinker.client_sessions import MOST_SNAPSHOTS, ClientSessions, Sampler, TrainedModel, measured_name
from cohort.service.tinker.promises import Answer
from cohort.service.tinker.schema import CreateModel, LoadWeights, LoraConfig, OptimStep, SaveForSampler, SaveWeights
from cohort.service.tinker.wire import PassBody, pass_answer
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_registry import UnknownAdapterError
from cohort.training.requests.client_models import ModelState
from cohort.training.requests.datum import checked_datum, checked_loss
from cohort.training.requests.request_executor import AdamParameters, PassRequest
from cohort.training.requests.token_passes import DatumResult
from cohort.training.token_objectives import TOKEN_OBJECTIVES

__all__ = ["LORA_ALPHA", "TrainingCalls", "fingerprint_of"]

LORA_ALPHA = 32.0
"""Tinker's own: its client names a rank and no alpha."""

# the call that makes a model comes before its first numbered one
_CREATION = 0


class TrainingCalls:
    """Carries out the calls of models; HTTP is above it, passes are below."""

    def __init__(
        self,
        trainer: ClientTrainer,
        *,
        pool: AdapterPool,
        sessions: ClientSessions,
        store: CheckpointStore,
        names: Sequence[str],
        vocab_size: int,
        context: int,
    ) -> None:
        """Train models of the base that has ``names``, and publish their versions in ``pool``."""
        self._trainer, self._pool, self._sessions, self._store = trainer, pool, sessions, store
        self._names, self._vocab_size, self._context = tuple(names), vocab_size, context

    @property
    def _layout(self) -> AdapterLayout:
        return self._trainer.executor.layout

    def check_base(self, name: str | None, *, where: str = "base_model") -> None:
        """Check the name of a base model.

        Raises:
            InputError: this server has another one.
        """
        if name is not None and name not in self._names:
            raise _wrong(
                where,
                found=repr(name),
                allowed=" or ".join(self._names),
                hint="Name the model that this server was started with, or give it the name by --served-model-name.",
            )

    def model_of(self, asked: CreateModel, *, model_id: str) -> TrainedModel:
        """Return the model that a call describes.

        Raises:
            InputError: the base model, the rank or the optimizer is none of this server's.
        """
        self.check_base(asked.base_model)
        if asked.optimizer_config.type != "adamw":
            raise _wrong(
                "optimizer_config.type",
                found=repr(asked.optimizer_config.type),
                allowed="adamw",
                hint="Leave optimizer_config out.",
            )
        lora = asked.lora_config or LoraConfig(rank=32)
        most = self._pool.settings.max_lora_rank
        if lora.rank > most:
            raise _wrong(
                "lora_config.rank",
                found=str(lora.rank),
                allowed=f"1 to {most}",
                hint="Choose a smaller rank, or start the server with a larger --max-lora-rank.",
            )
        trains = {"train_mlp": lora.train_mlp, "train_attn": lora.train_attn}
        frozen = self._frozen(trains)
        if len(frozen) == len(self._layout.linears):
            raise _wrong(
                "lora_config",
                found="train_mlp and train_attn false",
                allowed="at least one of them true",
                hint="Leave both out to train all.",
            )
        seed = derive_seed("tinker model", model_id) if lora.seed is None else lora.seed
        return TrainedModel(
            model_id=model_id,
            spec=AdapterSpec(r=lora.rank, lora_alpha=LORA_ALPHA),
            seed=seed,
            frozen=frozen,
            trains=trains,
            metadata=asked.user_metadata,
        )

    def _frozen(self, trains: Mapping[str, bool]) -> frozenset[str]:
        return frozenset(name for name in self._layout.linears if not trains[_part_of(name)])

    async def create(self, model: TrainedModel, *, fingerprint: bytes) -> Answer:
        """Make a model with fresh weights."""
        await self._make(model, None, fingerprint=fingerprint)
        return Answer(json={"type": "create_model", "model_id": model.model_id})

    async def _make(self, model: TrainedModel, state: ModelState | None, *, fingerprint: bytes) -> None:
        models = self._trainer.executor.models

        def make() -> None:
            models.create(model.model_id, model.spec, seed=model.seed, frozen=model.frozen, state=state)

        self._trainer.open(model.model_id, first=_CREATION)
        await self._run(model.model_id, _CREATION, fingerprint, make)

    async def _run(self, model_id: str, number: int, fingerprint: bytes, work: Any) -> Any:
        return await asyncio.wrap_future(
            self._trainer.submit(model_id, number=number, fingerprint=fingerprint, work=work)
        )

    async def train(self, body: PassBody, *, fingerprint: bytes) -> Answer:
        """Run a ``forward`` or ``forward_backward``."""
        work = self._checked(lambda: self._pass_request(body))
        results: list[DatumResult] = await self._run(body.model_id, body.number, fingerprint, work)
        fields = {
            "logprobs": [_as_sent(result.logps) for result in results],
            "elementwise_loss": [_as_sent(result.terms) for result in results],
        }
        total = float(sum(result.loss for result in results))
        message = pass_answer(fields, num_data=len(results), metrics={"loss:sum": total})
        return Answer(message=message)

    def _pass_request(self, body: PassBody) -> PassRequest:
        loss = checked_loss(body.loss, body.config, known=TOKEN_OBJECTIVES)
        data = tuple(
            checked_datum(tokens, inputs, loss=loss, place=place, vocab_size=self._vocab_size, context=self._context)
            for place, (tokens, inputs) in enumerate(body.data)
        )
        return PassRequest(model_id=body.model_id, data=data, loss=loss, trains=not body.forward_only)

    def _checked(self, make: Callable[[], Any]) -> Any:
        """Return the work of a call, or for a wrong one work that says so: its number is used up too."""
        try:
            return make()
        except CohortError as error:
            found = error

            def refuse() -> None:
                raise found

            return refuse

    async def step(self, asked: OptimStep, *, fingerprint: bytes) -> Answer:
        """Take an optimizer step."""
        norm = await self._run(asked.model_id, asked.seq_id, fingerprint, self._checked(lambda: _numbers(asked)))
        # JSON has no word for a norm that is not finite
        metrics = {"unclipped_grad_l2:mean": float(norm)} if math.isfinite(norm) else {}
        return Answer(json={"metrics": metrics})

    async def save(self, asked: SaveWeights, *, fingerprint: bytes) -> Answer:
        """Write a training checkpoint; the answer comes once it is on the disk."""
        model = self._sessions.model(asked.model_id)

        def read() -> ModelState:
            name = self._store.check_name(asked.path)
            if not asked.overwrite and self._store.exists(asked.model_id, "weights", name):
                raise _wrong(
                    "path",
                    found=f"{name}, which exists",
                    allowed="a new name, or overwrite: true",
                    hint="Choose another name, or overwrite the checkpoint.",
                )
            return self._trainer.executor.models.state(asked.model_id)

        state = await self._run(asked.model_id, asked.seq_id, fingerprint, read)
        uri = await asyncio.to_thread(self._write, model, "weights", asked, state)
        return Answer(json={"type": "save_weights", "path": uri})

    async def save_for_sampler(self, asked: SaveForSampler, *, fingerprint: bytes, session_id: str) -> Answer:
        """Keep a version to sample from: in memory, and on the disk where it has a name."""
        model = self._sessions.model(asked.model_id)

        def read() -> ModelState:
            if asked.path is not None:
                self._store.check_name(asked.path)
            return self._trainer.executor.models.state(asked.model_id)

        state = await self._run(asked.model_id, asked.seq_id, fingerprint, read)
        if asked.path is not None:
            uri = await asyncio.to_thread(self._write, model, "sampler_weights", asked, state)
            return Answer(json={"type": "save_weights_for_sampler", "path": uri})
        sampler_id = f"{session_id}:sample:{asked.sampling_session_seq_id}"
        await asyncio.to_thread(self._publish, sampler_id, model.spec, state.adapter.weights)
        self._sessions.samplers[sampler_id] = Sampler(
            sampler_id=sampler_id,
            adapter=sampler_id,
            model_id=model.model_id,
            spec=model.spec,
            weights_rD=state.adapter.weights,
        )
        model.snapshots.append(sampler_id)
        # versions without a name are for the steps to come, or a reference of all steps: those in use are kept
        while len(model.snapshots) > MOST_SNAPSHOTS:
            self.forget_sampler(model.snapshots.popleft())
        return Answer(json={"type": "save_weights_for_sampler", "sampling_session_id": sampler_id})

    def _write(self, model: TrainedModel, kind: str, asked: SaveWeights, state: ModelState) -> str:
        about = {
            "user_metadata": asked.user_metadata,
            "run_metadata": model.metadata,
            "seed": model.seed,
            "base_model": self._names[0],
            **model.trains,
        }
        name = self._store.check_name(asked.path)
        return self._store.save(
            model.model_id, kind, name, spec=model.spec, state=state, about=about, ttl_seconds=asked.ttl_seconds
        )

    def _publish(self, name: str, spec: AdapterSpec, weights_rD: Any) -> None:
        self._pool.publish(name, PeftAdapter(spec=spec, tensors=peft_tensors(self._layout, spec, weights_rD)))

    def open_sampler(self, sampler_id: str, checkpoint: Checkpoint | None) -> Sampler:
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

    def forget_sampler(self, sampler_id: str) -> None:
        """Drop a version from memory; those on the disk can be opened again."""
        if self._sessions.samplers.pop(sampler_id, None) is None:
            return
        try:
            self._pool.unload(sampler_id)
        except UnknownAdapterError:
            # the base model's
            return
        self._trainer.drop(measured_name(sampler_id))

    def drop(self, model_id: str) -> None:
        """Forget a model; what was saved of it stays."""
        model = self._sessions.models.pop(model_id, None)
        self._trainer.drop(model_id)
        for sampler_id in () if model is None else model.snapshots:
            self.forget_sampler(sampler_id)

    async def load_new(self, asked: LoadWeights, *, model_id: str, fingerprint: bytes) -> Answer:
        """Make a model of a checkpoint."""
        checkpoint = self._store.find(asked.path)
        state = await asyncio.to_thread(self._store.load, checkpoint, optimizer=asked.optimizer)
        about = checkpoint.about
        trains = {name: bool(about.get(name, True)) for name in ("train_mlp", "train_attn")}
        model = TrainedModel(
            model_id=model_id,
            spec=AdapterSpec(r=int(about["rank"]), lora_alpha=LORA_ALPHA),
            seed=int(about["seed"]),
            frozen=self._frozen(trains),
            trains=trains,
            metadata=asked.user_metadata,
        )
        await self._make(model, state, fingerprint=fingerprint)
        self._sessions.models[model_id] = model
        return Answer(json={"type": "load_weights", "path": asked.path, "model_id": model_id})

    async def load_into(self, asked: LoadWeights, *, fingerprint: bytes) -> Answer:
        """Give a model that exists the state of a checkpoint."""
        assert asked.model_id is not None, "the route asks for it"
        model = self._sessions.model(asked.model_id)
        store, models = self._store, self._trainer.executor.models

        def load() -> None:
            checkpoint = store.find(asked.path)
            if int(checkpoint.about["rank"]) != model.spec.r:
                raise _wrong(
                    "path",
                    found=f"{asked.path} of rank {checkpoint.about['rank']}",
                    allowed=f"a checkpoint of rank {model.spec.r}",
                    hint="Create a training client from the checkpoint instead.",
                )
            models.load(model.model_id, store.load(checkpoint, optimizer=asked.optimizer))

        await self._run(model.model_id, asked.seq_id or 1, fingerprint, load)
        return Answer(json={"type": "load_weights", "path": asked.path, "model_id": model.model_id})

    def end_session(self, session_id: str) -> None:
        """Free what a client that has left held; what it saved stays."""
        session = self._sessions.sessions.pop(session_id, None)
        if session is None:
            return
        for model_id in session.models:
            self.drop(model_id)
        for sampler_id in session.samplers:
            self.forget_sampler(sampler_id)


def _numbers(asked: OptimStep) -> AdamParameters:
    if asked.adam_params is None:
        raise _wrong(
            "adam_params",
            found="optimizer_params" if asked.optimizer_params else "nothing",
            allowed="adam_params",
            hint="Step with types.AdamParams; AdamW is the optimizer that this server has.",
        )
    return AdamParameters(**asked.adam_params.model_dump())


def _part_of(linear: str) -> str:
    return "train_attn" if "attn" in linear or "attention" in linear else "train_mlp"


def _as_sent(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return [N] where a position has one target, as the client sent it."""
    return values[:, 0] if values.shape[1] == 1 else values


def fingerprint_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _wrong(where: str, *, found: str, allowed: str, hint: str) -> InputError:
    return InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
