"""The paths below ``/api/v1``, as the ``tinker`` package calls them (0.38)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from cohort.service.tinker.answering import answering
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions, UnknownSessionError
from cohort.service.tinker.listings import add_listings
from cohort.service.tinker.promises import Answer, GoneError, Promises
from cohort.service.tinker.sampling import SamplingCalls
from cohort.service.tinker.schema import (
    CreateModel,
    CreateSamplingSession,
    LoadWeights,
    ModelCall,
    OptimStep,
    RetrieveFuture,
    Sample,
    SaveForSampler,
    SaveWeights,
    SessionCall,
    parse,
)
from cohort.service.tinker.training_calls import TrainingCalls, fingerprint_of
from cohort.service.tinker.wire import read_pass

__all__ = ["TinkerRoutes"]

WAIT_SECONDS = 20.0
SILENT_SECONDS = 120.0
_MESSAGE = "application/x-protobuf"


class TinkerRoutes:
    """Answers the client's calls with what carries them out."""

    def __init__(
        self,
        *,
        training: TrainingCalls,
        sampling: SamplingCalls,
        sessions: ClientSessions,
        store: CheckpointStore,
        base_model: str,
        context: int,
    ) -> None:
        self._training, self._sampling, self._sessions, self._store = training, sampling, sessions, store
        self._base_model, self._context = base_model, context
        self._promises = Promises()

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/api/v1")
        plain: dict[str, Callable[[Request, bytes], Awaitable[Any]]] = {
            "client/config": self._nothing,
            "client/dynamic_config": self._nothing,
            "telemetry": self._accepted,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "get_info": self._info,
            "create_model": self._create_model,
            "forward_backward": self._pass,
            "forward": self._pass,
            "optim_step": self._step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load,
            "unload_model": self._unload,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
        }
        for path, answer in plain.items():
            router.add_api_route(f"/{path}", answering(answer), methods=["POST"])
        router.add_api_route("/healthz", answering(self._health), methods=["GET"])
        router.add_api_route("/get_server_capabilities", answering(self._capabilities), methods=["GET"])
        router.add_api_route("/sessions/{session_id}/finish", answering(self._finish), methods=["POST"])
        add_listings(router, sessions=self._sessions, store=self._store, base_model=self._base_model)
        return router

    # ---- hello and goodbye

    async def _nothing(self, _: Request, __: bytes) -> Any:
        return {}

    async def _accepted(self, _: Request, __: bytes) -> Any:
        return {"status": "accepted"}

    async def _health(self, _: Request, __: bytes) -> Any:
        return {"status": "ok"}

    async def _capabilities(self, _: Request, __: bytes) -> Any:
        model = {"model_name": self._base_model, "max_context_length": self._context}
        return {"supported_models": [{**model, "trainable": True, "sampleable": True}]}

    async def _create_session(self, _: Request, __: bytes) -> Any:
        # sessions whose client no longer says that it is there make room for new ones
        for silent in self._sessions.silent(seconds=SILENT_SECONDS):
            self._training.end_session(silent.session_id)
        return {"type": "create_session", "session_id": self._sessions.begin().session_id}

    async def _heartbeat(self, _: Request, body: bytes) -> Any:
        try:
            self._sessions.session(parse(SessionCall, body).session_id)
        except UnknownSessionError as error:
            raise GoneError(str(error)) from None
        return {"type": "session_heartbeat"}

    async def _finish(self, request: Request, _: bytes) -> Any:
        self._training.end_session(request.path_params["session_id"])
        return {}

    # ---- training

    async def _create_model(self, _: Request, body: bytes) -> Any:
        asked = parse(CreateModel, body)
        session = self._sessions.session(asked.session_id)
        model_id = f"{session.session_id}:train:{asked.model_seq_id}"
        mark = fingerprint_of(body)
        if model_id not in self._sessions.models:
            self._sessions.models[model_id] = self._training.model_of(asked, model_id=model_id)
            session.models.append(model_id)
        model = self._sessions.models[model_id]
        made = self._promises.make(f"{model_id}:0", mark, lambda: self._training.create(model, fingerprint=mark))
        return {"request_id": made, "model_id": model_id}

    async def _info(self, _: Request, body: bytes) -> Any:
        model = self._sessions.model(parse(ModelCall, body).model_id)
        data = {"arch": "decoder", "model_name": self._base_model, "tokenizer_id": self._base_model}
        return {
            "type": "get_info",
            "model_data": data,
            "model_id": model.model_id,
            "is_lora": True,
            "lora_rank": model.spec.r,
            "model_name": self._base_model,
        }

    async def _pass(self, _: Request, body: bytes) -> Any:
        asked, mark = read_pass(body), fingerprint_of(body)
        return self._numbered(asked.model_id, asked.number, mark, lambda: self._training.train(asked, fingerprint=mark))

    async def _step(self, _: Request, body: bytes) -> Any:
        asked, mark = parse(OptimStep, body), fingerprint_of(body)
        return self._numbered(asked.model_id, asked.seq_id, mark, lambda: self._training.step(asked, fingerprint=mark))

    async def _save(self, _: Request, body: bytes) -> Any:
        asked, mark = parse(SaveWeights, body), fingerprint_of(body)
        return self._numbered(asked.model_id, asked.seq_id, mark, lambda: self._training.save(asked, fingerprint=mark))

    async def _save_for_sampler(self, _: Request, body: bytes) -> Any:
        asked, mark = parse(SaveForSampler, body), fingerprint_of(body)
        session_id = asked.model_id.partition(":")[0]
        return self._numbered(
            asked.model_id,
            asked.seq_id,
            mark,
            lambda: self._training.save_for_sampler(asked, fingerprint=mark, session_id=session_id),
        )

    def _numbered(
        self, model_id: str, number: int, mark: bytes, run: Callable[[], Awaitable[Answer]]
    ) -> dict[str, Any]:
        self._sessions.model(model_id)
        return {"request_id": self._promises.make(f"{model_id}:{number}", mark, run), "model_id": model_id}

    async def _load(self, _: Request, body: bytes) -> Any:
        asked, mark = parse(LoadWeights, body), fingerprint_of(body)
        self._training.check_base(asked.base_model)
        if asked.model_id is not None:
            number = asked.seq_id or 1
            return self._numbered(
                asked.model_id, number, mark, lambda: self._training.load_into(asked, fingerprint=mark)
            )
        session = self._sessions.session(asked.session_id or "")
        self._store.find(asked.path)
        model_id = f"{session.session_id}:train:{asked.model_seq_id}"
        if model_id not in session.models:
            session.models.append(model_id)
        made = self._promises.make(
            f"{model_id}:0", mark, lambda: self._training.load_new(asked, model_id=model_id, fingerprint=mark)
        )
        return {"request_id": made, "model_id": model_id}

    async def _unload(self, _: Request, body: bytes) -> Any:
        model_id = parse(ModelCall, body).model_id
        self._sessions.model(model_id)
        self._training.drop(model_id)

        async def done() -> Answer:
            return Answer(json={"type": "unload_model", "model_id": model_id})

        return {"request_id": self._promises.make(f"{model_id}:unload", b"", done)}

    # ---- sampling

    async def _create_sampling_session(self, _: Request, body: bytes) -> Any:
        asked = parse(CreateSamplingSession, body)
        session = self._sessions.session(asked.session_id)
        sampler_id = f"{session.session_id}:sample:{asked.sampling_session_seq_id}"
        if sampler_id not in self._sessions.samplers:
            if asked.model_path is None:
                self._training.check_base(asked.base_model)
            checkpoint = None if asked.model_path is None else self._store.find(asked.model_path)
            found = await asyncio.to_thread(self._training.open_sampler, sampler_id, checkpoint)
            self._sessions.samplers[sampler_id] = found
            session.samplers.append(sampler_id)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    async def _sample(self, _: Request, body: bytes) -> Any:
        asked = parse(Sample, body)
        sampler = self._sessions.sampler(asked.sampling_session_id)
        tokens = self._sampling.check(asked)
        request_id = f"{asked.sampling_session_id}:{asked.seq_id}"
        self._promises.make(
            request_id,
            fingerprint_of(body),
            lambda: self._sampling.sample(asked, tokens, sampler=sampler, request_id=request_id),
        )
        own = [f"{request_id}:{place}" for place in range(asked.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": own}

    # ---- answers

    async def _retrieve(self, _: Request, body: bytes) -> Any:
        request_id = parse(RetrieveFuture, body).request_id
        answer = await self._promises.wait(request_id, timeout_seconds=WAIT_SECONDS)
        if answer is None:
            return {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        if answer.message is not None:
            return Response(answer.message, media_type=_MESSAGE)
        return answer.json

    async def _cancel(self, _: Request, body: bytes) -> Any:
        self._promises.cancel(parse(RetrieveFuture, body).request_id)
        return {}
