"""What there is: sessions, models, checkpoints; the client's console calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from cohort.core.input_values.whole_numbers import read_whole
from cohort.service.tinker.answering import answering
from cohort.service.tinker.checkpoints import Checkpoint, CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions, UnknownSessionError
from cohort.service.tinker.owners import asker_of, may_know
from cohort.service.tinker.schema import SessionCall, parse

__all__ = ["add_listings"]


def add_listings(router: APIRouter, *, sessions: ClientSessions, store: CheckpointStore, base_model: str) -> None:
    """Add the routes that list, describe and delete."""
    listings = _Listings(sessions, store, base_model=base_model)
    gets: dict[str, Callable[[Request, bytes], Awaitable[Any]]] = {
        "sessions": listings.list_sessions,
        "sessions/{session_id}": listings.get_session,
        "samplers/{sampler_id:path}": listings.get_sampler,
        "training_runs": listings.list_runs,
        "training_runs/{model_id}/checkpoints": listings.list_checkpoints,
        "training_runs/{model_id}": listings.get_run,
        "checkpoints": listings.all_checkpoints,
    }
    for path, answer in gets.items():
        router.add_api_route(f"/{path}", answering(answer), methods=["GET"])
    router.add_api_route("/weights_info", answering(listings.weights_info), methods=["POST"])
    one = "/training_runs/{model_id}/checkpoints/{kind}/{name}"
    router.add_api_route(one, answering(listings.delete), methods=["DELETE"])
    router.add_api_route(f"{one}/ttl", answering(listings.set_expiry), methods=["PUT"])
    router.add_api_route(f"{one}/publish", answering(listings.publish), methods=["POST"])
    router.add_api_route(f"{one}/publish", answering(listings.withdraw), methods=["DELETE"])


class _Listings:
    def __init__(self, sessions: ClientSessions, store: CheckpointStore, *, base_model: str) -> None:
        self._sessions, self._store, self._base_model = sessions, store, base_model

    async def list_sessions(self, request: Request, _: bytes) -> Any:
        asker, known = asker_of(request), self._sessions.sessions.values()
        return {"sessions": [each.session_id for each in known if may_know(asker, each.owner)]}

    async def get_session(self, request: Request, _: bytes) -> Any:
        session = self._sessions.session(request.path_params["session_id"], asker=asker_of(request))
        return {"training_run_ids": session.models, "sampler_ids": session.samplers}

    async def get_sampler(self, request: Request, _: bytes) -> Any:
        sampler = self._sessions.sampler(request.path_params["sampler_id"], asker=asker_of(request))
        return {"sampler_id": sampler.sampler_id, "base_model": self._base_model, "model_path": sampler.model_path}

    async def list_runs(self, request: Request, _: bytes) -> Any:
        asker = asker_of(request)
        training = [name for name in self._sessions.models if may_know(asker, self._sessions.owner_of(name))]
        saved = [name for name in self._store.models() if self._store.of_model(name, asker=asker)]
        names = list(dict.fromkeys([*training, *saved]))
        offset, limit = _window(request)
        cursor = {"offset": offset, "limit": limit, "total_count": len(names)}
        return {"training_runs": [self._run(name, asker) for name in names[offset : offset + limit]], "cursor": cursor}

    async def get_run(self, request: Request, _: bytes) -> Any:
        model_id, asker = request.path_params["model_id"], asker_of(request)
        is_training = model_id in self._sessions.models and may_know(asker, self._sessions.owner_of(model_id))
        if not is_training and not self._store.of_model(model_id, asker=asker):
            raise UnknownSessionError(f"there is no training run {model_id[:200]!r}")
        return self._run(model_id, asker)

    def _run(self, model_id: str, asker: str) -> dict[str, Any]:
        model, saved = self._sessions.models.get(model_id), self._store.of_model(model_id, asker=asker)
        by_kind = {kind: next((each for each in saved if each.kind == kind), None) for kind in _KIND_NAMES}
        rank = model.spec.r if model is not None else (int(saved[0].about["rank"]) if saved else None)
        metadata = model.metadata if model is not None else (saved[0].about.get("run_metadata") if saved else None)
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
            "user_metadata": metadata,
        }

    async def list_checkpoints(self, request: Request, _: bytes) -> Any:
        found = self._store.of_model(request.path_params["model_id"], asker=asker_of(request))
        return {"checkpoints": [_shown(each) for each in found]}

    async def all_checkpoints(self, request: Request, _: bytes) -> Any:
        asker = asker_of(request)
        found = [each for model_id in self._store.models() for each in self._store.of_model(model_id, asker=asker)]
        offset, limit = _window(request)
        cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
        return {"checkpoints": [_shown(each) for each in found[offset : offset + limit]], "cursor": cursor}

    async def weights_info(self, request: Request, body: bytes) -> Any:
        about = self._store.find(parse(_Path, body).tinker_path, asker=asker_of(request)).about
        trains = {name: about.get(name, True) for name in ("train_mlp", "train_attn")}
        rank = {"is_lora": True, "lora_rank": about["rank"], "train_unembed": False}
        return {"base_model": self._base_model, **rank, **trains}

    async def delete(self, request: Request, _: bytes) -> Any:
        self._store.delete(self._asked_checkpoint(request))
        return Response(status_code=204)

    async def set_expiry(self, request: Request, body: bytes) -> Any:
        checkpoint = self._asked_checkpoint(request)
        self._store.set_expiry(checkpoint, ttl_seconds=parse(_Expiry, body).ttl_seconds)
        return {}

    async def publish(self, request: Request, _: bytes) -> Any:
        self._store.set_public(self._asked_checkpoint(request), public=True)
        return Response(status_code=204)

    async def withdraw(self, request: Request, _: bytes) -> Any:
        self._store.set_public(self._asked_checkpoint(request), public=False)
        return Response(status_code=204)

    def _asked_checkpoint(self, request: Request) -> Checkpoint:
        parts = request.path_params
        return self._store.find(
            self._store.uri(parts["model_id"], parts["kind"], parts["name"]), asker=asker_of(request), to_change=True
        )


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
        "public": checkpoint.is_public,
        "user_metadata": checkpoint.about.get("user_metadata"),
        "expires_at": None if expires is None else _when(expires),
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()


def _window(request: Request) -> tuple[int, int]:
    def number(name: str, usual: int) -> int:
        given = read_whole(request.query_params.get(name, ""))
        return usual if given is None else given

    return number("offset", 0), min(1000, number("limit", 20))
