"""OpenAI's completions and chat completions, by the tenant's own models and the server's bases."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from cohort.service.access.gate import caller_of
from cohort.service.openapi_bodies import request_body
from cohort.service.schema import ChatRequest, CompletionRequest, parse_body
from cohort.service.served_model import PreparedRequest
from cohort.service.served_models import ServedBaseModel, ServedModels
from cohort.service.usage_book import UsageBook
from cohort.store.enums import UsageKind

__all__ = ["inference_routes"]


def inference_routes(served: ServedModels, book: UsageBook) -> APIRouter:
    """Return the routes of completions."""
    routes = APIRouter(prefix="/v1", tags=["inference"])

    def prepare(asked: CompletionRequest | ChatRequest, project_id: str) -> tuple[ServedBaseModel, PreparedRequest]:
        book.require_tokens(project_id)
        base = served.find(asked.model, project_id=project_id)
        model = base.model
        prepared = model.prepare_chat(asked) if isinstance(asked, ChatRequest) else model.prepare_completion(asked)
        book.add(project_id, {UsageKind.PROMPT_TOKENS: prepared.num_prompt_tokens, UsageKind.REQUESTS: 1})
        return base, served.scoped(prepared, project_id=project_id)

    async def answer(request: Request, asked: CompletionRequest | ChatRequest) -> Response:
        project_id = caller_of(request.scope).project.id
        base, prepared = await asyncio.to_thread(prepare, asked, project_id)

        def count(num_tokens: int) -> None:
            book.add(project_id, {UsageKind.COMPLETION_TOKENS: num_tokens})

        return await base.answers.answer(request, asked, prepared, is_chat=isinstance(asked, ChatRequest), on_end=count)

    @routes.post("/completions", summary="Complete a prompt", openapi_extra=request_body(CompletionRequest))
    async def completion(request: Request) -> Response:
        return await answer(request, parse_body(CompletionRequest, await request.body()))

    @routes.post("/chat/completions", summary="Answer messages", openapi_extra=request_body(ChatRequest))
    async def chat(request: Request) -> Response:
        return await answer(request, parse_body(ChatRequest, await request.body()))

    return routes
