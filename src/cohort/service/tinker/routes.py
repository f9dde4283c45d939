"""The paths below ``/api/v1``, as the ``tinker`` package calls them (0.38)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from cohort.core.errors import CohortError, InputError
from cohort.engine.client_training.client_trainer import TrainerClosedError
from cohort.service.engine_thread import QueueFullError, ServerClosingError
from cohort.service.tinker.checkpoints import Checkpoint, CheckpointStore, UnknownCheckpointError
from cohort.service.tinker.client_sessions import ClientSessions, UnknownSessionError
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
from cohort.training.requests.client_models import UnknownModelError

__all__ = ["TinkerRoutes"]

WAIT_SECONDS = 20.0
SILENT_SECONDS = 120.0
_MESSAGE = "application/x-protobuf"
_STATUS_OF: dict[type[CohortError], int] = {
    InputError: 400,
    UnknownCheckpointError: 404,
    UnknownSessionError: 404,
    UnknownModelError: 404,
    GoneError: 410,
    QueueFullError: 429,
    ServerClosingError: 503,
    TrainerClosedError: 503,
}


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
            "weights_info": self._weights_info,
        }
        for path, answer in plain.items():
            router.add_api_route(f"/{path}", _answering(answer), methods=["POST"])
        gets: dict[str, Callable[[Request, bytes], Awaitable[Any]]] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
            "sessions": self._list_sessions,
            "sessions/{session_id}": self._get_session,
            "samplers/{sampler_id:path}": self._get_sampler,
            "training_runs": self._list_runs,
            "training_runs/{model_id}/checkpoints": self._list_checkpoints,
            "training_runs/{model_id}": self._get_run,
            "checkpoints": self._all_checkpoints,
        }
        for path, answer in gets.items():
            router.add_api_route(f"/{path}", _answering(answer), methods=["GET"])
        router.add_api_route("/sessions/{session_id}/finish", _answering(self._finish), methods=["POST"])
        one = "/training_runs/{model_id}/checkpoints/{kind}/{name}"
        router.add_api_route(one, _answering(self._delete), methods=["DELETE"])
        router.add_api_route(f"{one}/ttl", _answering(self._set_expiry), methods=["PUT"])
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

    # ---- what there is

    async def _list_sessions(self, _: Request, __: bytes) -> Any:
        return {"sessions": list(self._sessions.sessions)}

    async def _get_session(self, request: Request, _: bytes) -> Any:
        session = self._sessions.session(request.path_params["session_id"])
        return {"training_run_ids": session.models, "sampler_ids": session.samplers}

    async def _get_sampler(self, request: Request, _: bytes) -> Any:
        sampler = self._sessions.sampler(request.path_params["sampler_id"])
        return {"sampler_id": sampler.sampler_id, "base_model": self._base_model, "model_path": sampler.model_path}

    async def _list_runs(self, request: Request, _: bytes) -> Any:
        names = list(dict.fromkeys([*self._sessions.models, *self._store.models()]))
        offset, limit = _window(request)
        cursor = {"offset": offset, "limit": limit, "total_count": len(names)}
        return {"training_runs": [self._run(name) for name in names[offset : offset + limit]], "cursor": cursor}

    async def _get_run(self, request: Request, _: bytes) -> Any:
        model_id = request.path_params["model_id"]
        if model_id not in self._sessions.models and not self._store.of_model(model_id):
            raise UnknownSessionError(f"there is no training run {model_id!r}")
        return self._run(model_id)

    def _run(self, model_id: str) -> dict[str, Any]:
        model, saved = self._sessions.models.get(model_id), self._store.of_model(model_id)
        by_kind = {kind: next((each for each in saved if each.kind == kind), None) for kind in _KIND_NAMES}
        rank = model.spec.r if model is not None else (int(saved[0].about["rank"]) if saved else None)
        last = model.last_call if model is not None else (saved[0].about["time"] if saved else 0.0)
        return {
            "training_run_id": model_id,
            "base_model": self._base_model,
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": rank,
            "last_request_time": _when(last),
            "last_checkpoint": _shown(by_kind["weights"]),
            "last_sampler_checkpoint": _shown(by_kind["sampler_weights"]),
            "user_metadata": None if model is None else model.metadata,
        }

    async def _list_checkpoints(self, request: Request, _: bytes) -> Any:
        return {"checkpoints": [_shown(each) for each in self._store.of_model(request.path_params["model_id"])]}

    async def _all_checkpoints(self, request: Request, _: bytes) -> Any:
        found = [each for model_id in self._store.models() for each in self._store.of_model(model_id)]
        offset, limit = _window(request)
        cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
        return {"checkpoints": [_shown(each) for each in found[offset : offset + limit]], "cursor": cursor}

    async def _weights_info(self, _: Request, body: bytes) -> Any:
        about = self._store.find(parse(_Path, body).tinker_path).about
        trains = {name: about.get(name, True) for name in ("train_mlp", "train_attn")}
        rank = {"is_lora": True, "lora_rank": about["rank"], "train_unembed": False}
        return {"base_model": self._base_model, **rank, **trains}

    async def _delete(self, request: Request, _: bytes) -> Any:
        self._store.delete(self._asked_checkpoint(request))
        return Response(status_code=204)

    async def _set_expiry(self, request: Request, body: bytes) -> Any:
        checkpoint = self._asked_checkpoint(request)
        self._store.set_expiry(checkpoint, ttl_seconds=parse(_Expiry, body).ttl_seconds)
        return {}

    def _asked_checkpoint(self, request: Request) -> Checkpoint:
        parts = request.path_params
        return self._store.find(self._store.uri(parts["model_id"], parts["kind"], parts["name"]))


class _Path(SessionCall):
    tinker_path: str


class _Expiry(SessionCall):
    ttl_seconds: int | None = None


_KIND_NAMES = {"weights": "training", "sampler_weights": "sampler"}


def _shown(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    expires = checkpoint.expires_at
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": _KIND_NAMES[checkpoint.kind],
        "time": _when(checkpoint.about["time"]),
        "tinker_path": checkpoint.uri,
        "size_bytes": checkpoint.num_bytes,
        "public": False,
        "user_metadata": checkpoint.about.get("user_metadata"),
        "expires_at": None if expires is None else _when(expires),
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()


def _window(request: Request) -> tuple[int, int]:
    def number(name: str, usual: int) -> int:
        given = request.query_params.get(name, "")
        return int(given) if given.isdigit() else usual

    return number("offset", 0), min(1000, number("limit", 20))


def _answering(answer: Callable[[Request, bytes], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        try:
            found = await answer(request, await request.body())
        except CohortError as error:
            status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
            return JSONResponse({"detail": str(error)}, status_code=status)
        return found if isinstance(found, Response) else JSONResponse(found)

    return route
