"""Training for the Tinker client: models made, passed, stepped, saved and loaded, each in the order of its calls."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.service.tinker.client_sessions import (
    ClientSessions,
    TrainedModel,
)
from cohort.service.tinker.futures import Answer
from cohort.service.tinker.protobuf_messages import PassBody, pass_answer
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.schema import CreateModel, LoraConfig, OptimStep
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.client_models import ModelState
from cohort.training.client_training.datum import checked_datum, checked_loss
from cohort.training.client_training.request_executor import AdamParameters, PassRequest
from cohort.training.client_training.token_passes import DatumResult

__all__ = ["CREATION", "LORA_ALPHA", "TrainingCalls", "fingerprint_of"]

LORA_ALPHA = 32.0
"""Tinker's own: its client names a rank and no alpha."""

CREATION = 0
"""The call that makes a model comes before its first numbered one."""


class TrainingCalls:
    """Carries out the calls of models; HTTP is above it, passes are below.

    Attributes:
        trainer: What runs them.
        on_drop: Hears of a model that is gone.
    """

    def __init__(
        self,
        trainer: ClientTrainer,
        *,
        versions: SamplerVersions,
        sessions: ClientSessions,
        names: Sequence[str],
        max_rank: int,
        vocab_size: int,
        context: int,
    ) -> None:
        """Train models of the base that has ``names``, up to ``max_rank``."""
        self.trainer, self._versions, self._sessions = trainer, versions, sessions
        self._names, self._max_rank = tuple(names), max_rank
        self._vocab_size, self._context = vocab_size, context
        self.on_drop: Callable[[str], None] = lambda _: None

    @property
    def base_model(self) -> str:
        """The name of the base model."""
        return self._names[0]

    @property
    def _layout(self) -> AdapterLayout:
        return self.trainer.executor.layout

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
        most = self._max_rank
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

    def described(self, about: Mapping[str, Any]) -> TrainedModel:
        """Return the model that :meth:`TrainedModel.as_json` described."""
        trains = dict(about["trains"])
        return TrainedModel(
            model_id=about["model_id"],
            spec=AdapterSpec(r=about["rank"], lora_alpha=LORA_ALPHA),
            seed=about["seed"],
            frozen=self._frozen(trains),
            trains=trains,
            metadata=about["metadata"],
        )

    async def create(self, model: TrainedModel, *, fingerprint: bytes) -> Answer:
        """Make a model with fresh weights."""
        await self.make(model, None, fingerprint=fingerprint)
        return Answer(json={"type": "create_model", "model_id": model.model_id})

    async def make(self, model: TrainedModel, state: ModelState | None, *, fingerprint: bytes) -> None:
        """Make a model, fresh or as ``state`` has it."""
        models = self.trainer.executor.models

        def make() -> None:
            models.create(model.model_id, model.spec, seed=model.seed, frozen=model.frozen, state=state)

        self.open(model.model_id, first=CREATION)
        await self.run(model.model_id, CREATION, fingerprint, make)

    def open(self, model_id: str, *, first: int) -> None:
        """Take calls of a model from number ``first`` on, in the share of its owner."""
        self.trainer.open(model_id, first=first, tenant=self._sessions.owner_of(model_id))

    async def run(self, model_id: str, number: int, fingerprint: bytes, work: Any) -> Any:
        """Return what a call of a model gives, once it has run in its turn."""
        return await asyncio.wrap_future(
            self.trainer.submit(model_id, number=number, fingerprint=fingerprint, work=work)
        )

    async def train(self, body: PassBody, *, fingerprint: bytes) -> Answer:
        """Run a ``forward`` or ``forward_backward``."""
        work = self._checked(lambda: self._pass_request(body))
        results: list[DatumResult] = await self.run(body.model_id, body.number, fingerprint, work)
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
        norm = await self.run(asked.model_id, asked.seq_id, fingerprint, self._checked(lambda: _numbers(asked)))
        # JSON has no word for a norm that is not finite
        metrics = {"unclipped_grad_l2:mean": float(norm)} if math.isfinite(norm) else {}
        return Answer(json={"metrics": metrics})

    def pass_over(self, model_id: str, number: int, body: PassBody | None, *, fingerprint: bytes) -> None:
        """Use the number of a call up that failed, or that need not be carried out again.

        Args:
            body: Of a pass that failed: the gradients of before it went with it.
        """
        models = self.trainer.executor.models
        work = None if body is None or not self._trains(body) else models.clear_gradients

        def nothing() -> None:
            if work is not None and model_id in models:
                work(model_id)

        self.open(model_id, first=CREATION)
        self.trainer.submit(model_id, number=number, fingerprint=fingerprint, work=nothing)

    def _trains(self, body: PassBody) -> bool:
        try:
            request = self._pass_request(body)
        except CohortError:
            # it was refused in its turn
            return False
        return request.trains and bool(request.data)

    def drop(self, model_id: str) -> None:
        """Forget a model; what was saved of it stays."""
        model = self._sessions.models.pop(model_id, None)
        self.trainer.drop(model_id)
        self.on_drop(model_id)
        for sampler_id in () if model is None else model.snapshots:
            self._versions.forget(sampler_id)

    def end_session(self, session_id: str) -> None:
        """Free what a client that has left held; what it saved stays."""
        session = self._sessions.sessions.pop(session_id, None)
        if session is None:
            return
        for model_id in session.models:
            self.drop(model_id)
        for sampler_id in session.samplers:
            self._versions.forget(sampler_id)


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
