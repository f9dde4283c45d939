"""OpenAI's models: the server's base models, and the project's own."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from cohort.service.access.gate import caller_of
from cohort.service.access.refusals import ServiceError
from cohort.service.fine_tuning.bodies import model_body
from cohort.service.served_models import ServedModels
from cohort.store.errors import UnknownIdError
from cohort.store.store import Store

__all__ = ["model_routes"]


def model_routes(store: Store, served: ServedModels) -> APIRouter:
    """Return the routes of models. Their names may hold slashes."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])
    created = int(time.time())

    def base_body(name: str) -> dict[str, Any]:
        base = served.bases[name]
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "cohort",
            "root": name,
            "parent": None,
            "max_model_len": base.model.max_model_len,
        }

    def all_models(project_id: str, owner: str) -> list[dict[str, Any]]:
        models = store.project(project_id).models
        found, after = [], None
        while True:
            page = models.list(after=after)
            found += [model_body(model, owner=owner) for model in page.items]
            if not page.has_more:
                return [*map(base_body, served.bases), *found]
            after = page.items[-1].id

    def one(project_id: str, owner: str, name: str) -> dict[str, Any]:
        if name in served.bases:
            return base_body(name)
        models = store.project(project_id).models
        checkpoint = models.checkpoint(name)
        if checkpoint is not None:
            return {"id": name, "object": "model", "created": int(checkpoint.created_at), "owned_by": owner}
        return model_body(models.get(name), owner=owner)

    def delete(project_id: str, name: str) -> None:
        if name in served.bases:
            text = "A base model of the server cannot be deleted."
            raise ServiceError(text, status=403, param="model", code="not_deletable")
        store.project(project_id).models.delete(name)
        served.forget(name)

    @routes.get("", summary="List models")
    async def listed(request: Request) -> Response:
        project = caller_of(request.scope).project
        found = await asyncio.to_thread(all_models, project.id, project.organisation_id)
        return JSONResponse({"object": "list", "data": found})

    @routes.get("/{model_id:path}", summary="Retrieve a model")
    async def retrieved(request: Request, model_id: str) -> Response:
        project = caller_of(request.scope).project
        return JSONResponse(await asyncio.to_thread(one, project.id, project.organisation_id, model_id))

    @routes.delete("/{model_id:path}", summary="Delete a fine-tuned model or a checkpoint")
    async def deleted(request: Request, model_id: str) -> Response:
        try:
            await asyncio.to_thread(delete, caller_of(request.scope).project.id, model_id)
        except UnknownIdError:
            text = f"The model {model_id[:200]!r} does not exist or you do not have access to it."
            raise ServiceError(text, status=404, param="model", code="model_not_found") from None
        return JSONResponse({"id": model_id, "object": "model", "deleted": True})

    return routes
