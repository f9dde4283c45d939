"""OpenAI's completions and chat completions, by the model of `cohort serve`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from cohort.service.completion_answers import CompletionAnswers
from cohort.service.schema import ChatRequest, CompletionRequest, parse_body
from cohort.service.served_model import ServedModel

__all__ = ["completion_routes"]


def completion_routes(model: ServedModel, completions: CompletionAnswers) -> APIRouter:
    """Return the routes of completions."""
    routes = APIRouter(prefix="/v1")

    @routes.post("/completions")
    async def completion(request: Request) -> Response:
        asked = parse_body(CompletionRequest, await request.body())
        # a thread costs a short prompt of tokens more than it saves
        is_quick = model.prepares_at_once(asked)
        prepared = (
            model.prepare_completion(asked) if is_quick else await asyncio.to_thread(model.prepare_completion, asked)
        )
        return await completions.answer(request, asked, prepared, is_chat=False)

    @routes.post("/chat/completions")
    async def chat(request: Request) -> Response:
        asked = parse_body(ChatRequest, await request.body())
        prepared = await asyncio.to_thread(model.prepare_chat, asked)
        return await completions.answer(request, asked, prepared, is_chat=True)

    return routes
