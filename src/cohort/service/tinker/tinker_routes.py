"""The paths below ``/api/v1``, as the ``tinker`` package calls them (0.38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from cohort.service.tinker.answering import answering
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions, UnknownSessionError
from cohort.service.tinker.durability import Keeping
from cohort.service.tinker.futures import Answer, GoneError
from cohort.service.tinker.journal.records import Record
from cohort.service.tinker.listings import add_listings
from cohort.service.tinker.model_calls import MODEL_CALLS
from cohort.service.tinker.owners import asker_of, may_know
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.sampling import SamplingCalls
from cohort.service.tinker.schema import CreateSamplingSession, ModelCall, RetrieveFuture, Sample, SessionCall, parse
from cohort.service.tinker.training_calls import TrainingCalls, fingerprint_of

__all__ = ["TinkerRoutes"]

WAIT_SECONDS = 20.0
_MESSAGE = "application/x-protobuf"


class TinkerRoutes:
    """Answers the client's calls with what carries them out."""

    def __init__(
        self,
        *,
        training: TrainingCalls,
        sampling: SamplingCalls,
        versions: SamplerVersions,
        sessions: ClientSessions,
        store: CheckpointStore,
        keeping: Keeping,
        base_model: str,
        context: int,
    ) -> None:
        self._training, self._sampling, self._versions = training, sampling, versions
        self._sessions, self._store = sessions, store
        self._promises, self._journal, self._calls = keeping.promises, keeping.journal, keeping.calls
        self._samples, self._upkeep, self._recovery = keeping.samples, keeping.upkeep, keeping.recovery
        self._base_model, self._context = base_model, context

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/api/v1", lifespan=self._running)
        plain: dict[str, Callable[[Request, bytes], Awaitable[Any]]] = {
            "client/config": self._nothing,
            "client/dynamic_config": self._nothing,
            "telemetry": self._accepted,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "get_info": self._info,
            "unload_model": self._unload,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
            **{path: self._taking(path) for path in MODEL_CALLS},
        }
        for path, answer in plain.items():
            router.add_api_route(f"/{path}", answering(answer), methods=["POST"])
        router.add_api_route("/healthz", answering(self._health), methods=["GET"])
        router.add_api_route("/get_server_capabilities", answering(self._capabilities), methods=["GET"])
        router.add_api_route("/sessions/{session_id}/finish", answering(self._finish), methods=["POST"])
        add_listings(router, sessions=self._sessions, store=self._store, base_model=self._base_model)
        return router

    @asynccontextmanager
    async def _running(self, _: Any) -> AsyncIterator[None]:
        """Begin again what a restart has cut short, and keep things in order until the server stops."""
        self._recovery.repeat(self._calls)
        upkeep = asyncio.create_task(self._upkeep.run())
        try:
            yield
        finally:
            upkeep.cancel()
            self._journal.close()
            self._samples.close()

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

    async def _create_session(self, request: Request, _: bytes) -> Any:
        session_id = self._sessions.new_id()
        owner = asker_of(request)
        self._journal.append(Record(kind="session", about={"session": session_id, "owner": owner}))
        self._sessions.begin(session_id, owner=owner)
        return {"type": "create_session", "session_id": session_id}

    async def _heartbeat(self, request: Request, body: bytes) -> Any:
        try:
            self._sessions.session(parse(SessionCall, body).session_id, asker=asker_of(request))
        except UnknownSessionError as error:
            raise GoneError(str(error)) from None
        return {"type": "session_heartbeat"}

    async def _finish(self, request: Request, _: bytes) -> Any:
        session_id = request.path_params["session_id"]
        if session_id in self._sessions.sessions:
            self._sessions.session(session_id, asker=asker_of(request))
            self._upkeep.end_session(session_id)
        return {}

    # ---- training

    def _taking(self, path: str) -> Callable[[Request, bytes], Awaitable[Any]]:
        async def take(request: Request, body: bytes) -> Any:
            return self._calls.take(path, body, asker=asker_of(request))

        return take

    async def _info(self, request: Request, body: bytes) -> Any:
        model = self._sessions.model(parse(ModelCall, body).model_id, asker=asker_of(request))
        data = {"arch": "decoder", "model_name": self._base_model, "tokenizer_id": self._base_model}
        return {
            "type": "get_info",
            "model_data": data,
            "model_id": model.model_id,
            "is_lora": True,
            "lora_rank": model.spec.r,
            "model_name": self._base_model,
        }

    async def _unload(self, request: Request, body: bytes) -> Any:
        model_id = parse(ModelCall, body).model_id
        self._sessions.model(model_id, asker=asker_of(request))
        self._journal.append(Record(kind="drop", about={"model": model_id}))
        self._training.drop(model_id)

        async def done() -> Answer:
            return Answer(json={"type": "unload_model", "model_id": model_id})

        return {"request_id": self._promises.make(f"{model_id}:unload", b"", done)}

    # ---- sampling

    async def _create_sampling_session(self, request: Request, body: bytes) -> Any:
        asked, asker = parse(CreateSamplingSession, body), asker_of(request)
        session = self._sessions.session(asked.session_id, asker=asker)
        sampler_id = f"{session.session_id}:sample:{asked.sampling_session_seq_id}"
        if sampler_id not in self._sessions.samplers:
            if asked.model_path is None:
                self._training.check_base(asked.base_model)
            checkpoint = None if asked.model_path is None else self._store.find(asked.model_path, asker=asker)
            found = await asyncio.to_thread(self._versions.open, sampler_id, checkpoint)
            if session.session_id not in self._sessions.sessions:
                self._versions.withdraw(found)
                raise UnknownSessionError(f"session {session.session_id!r} has ended")
            if sampler_id not in self._sessions.samplers:
                about = {"sampler": sampler_id, "model_path": found.model_path}
                self._journal.append(Record(kind="sampler", about=about))
                self._sessions.samplers[sampler_id] = found
                session.samplers.append(sampler_id)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    async def _sample(self, request: Request, body: bytes) -> Any:
        asked = parse(Sample, body)
        request_id = f"{asked.sampling_session_id}:{asked.seq_id}"
        add = partial(self._samples.add, request_id, body)
        await self._recovery.wait_for(asked.sampling_session_id)
        self._begin_sample(asked, body, asker=asker_of(request), before=add)
        own = [f"{request_id}:{place}" for place in range(asked.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": own}

    def _begin_sample(
        self, asked: Sample, body: bytes, *, asker: str, before: Callable[[], None] | None = None
    ) -> None:
        sampler = self._sessions.sampler(asked.sampling_session_id, asker=asker)
        tokens = self._sampling.check(asked)
        request_id = f"{asked.sampling_session_id}:{asked.seq_id}"
        self._promises.make(
            request_id,
            fingerprint_of(body),
            lambda: self._sampling.sample(
                asked, tokens, sampler=sampler, request_id=request_id, tenant=self._sessions.owner_of(request_id)
            ),
            before=before,
        )

    # ---- answers

    async def _retrieve(self, request: Request, body: bytes) -> Any:
        request_id = self._asked_id(request, body)
        if self._promises.fingerprint(request_id) is None and (old := self._samples.before(request_id)) is not None:
            # asked for before a restart: the same version gives the same tokens for the same seed
            asked = parse(Sample, old)
            await self._recovery.wait_for(asked.sampling_session_id)
            self._begin_sample(asked, old, asker=asker_of(request))
        answer = await self._promises.wait(request_id, timeout_seconds=WAIT_SECONDS)
        if answer is None:
            return {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        if answer.message is not None:
            return Response(answer.message, media_type=_MESSAGE)
        return answer.json

    async def _cancel(self, request: Request, body: bytes) -> Any:
        request_id = self._asked_id(request, body)
        # a call of a model has a number that later calls wait for: it is carried out
        if request_id.split(":")[1:2] == ["sample"]:
            self._promises.cancel(request_id)
        return {}

    def _asked_id(self, request: Request, body: bytes) -> str:
        request_id = parse(RetrieveFuture, body).request_id
        if not may_know(asker_of(request), self._sessions.owner_of(request_id)):
            raise GoneError(f"there is no call {request_id[:200]!r}, or its answer is no longer kept")
        return request_id
