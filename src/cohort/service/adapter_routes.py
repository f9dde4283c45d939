"""Listing, loading and unloading adapters at run time, with vLLM's bodies and answers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.service.schema import LoadAdapterRequest, UnloadAdapterRequest, parse_body
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServerSettings

__all__ = ["AdapterRoutes", "NotAllowedError", "adapter_routes", "path_below"]


class NotAllowedError(InputError):
    """The server was started without permission for this."""


class AdapterRoutes:
    """What the routes do; files are read in the caller's thread."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        self._model, self._root = model, settings.lora_root
        self._created = int(time.time())

    def listed(self) -> dict[str, Any]:
        """Return the body of GET /v1/models: the base model's names, then the adapters."""
        bases = [self._entry(name, root=name, parent=None) for name in self._model.names]
        adapters = [
            {
                **self._entry(status.name, root=str(status.path or status.name), parent=self._model.names[0]),
                "lora_rank": status.r,
                "version": status.version,
            }
            for status in self._model.pool.statuses()
            if not self._model.is_private(status.name)
        ]
        return {"object": "list", "data": [*bases, *adapters]}

    def _entry(self, name: str, *, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "cohort",
            "root": root,
            "parent": parent,
            "max_model_len": self._model.max_model_len,
        }

    def load(self, body: bytes) -> str:
        """Load an adapter below the server's folder of adapters.

        Raises:
            NotAllowedError: loading is not allowed, or the path is outside.
            OtherBaseError: it is of another base model.
            InputError: the adapter does not fit.
            NameTakenError: the name is taken and ``load_inplace`` is False.
        """
        asked = parse_body(LoadAdapterRequest, body)
        path = path_below(self._required_root(), asked.lora_path)
        if asked.base_model_sha256 is not None:
            self._model.base.require(asked.base_model_sha256, of=asked.lora_name)
        self._model.pool.load(asked.lora_name, path, replaces=asked.load_inplace)
        return f"Success: LoRA adapter '{asked.lora_name}' added successfully."

    def unload(self, body: bytes) -> str:
        """Unload an adapter; its running requests are finished.

        Raises:
            NotAllowedError: loading and unloading is not allowed.
            UnknownAdapterError: there is no such adapter.
        """
        asked = parse_body(UnloadAdapterRequest, body)
        self._required_root()
        self._model.pool.unload(asked.lora_name)
        return f"Success: LoRA adapter '{asked.lora_name}' removed successfully."

    def _required_root(self) -> Path:
        if self._root is None:
            raise NotAllowedError(
                Problem(
                    where="server",
                    found="a request to change adapters at run time",
                    allowed="the adapters that the server was started with",
                    hint="Start the server with --allow-runtime-lora --lora-root DIR.",
                )
            )
        return self._root


def adapter_routes(adapters: AdapterRoutes) -> APIRouter:
    """Return the routes of models and adapters."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    async def models() -> Response:
        return JSONResponse(adapters.listed())

    @routes.post("/load_lora_adapter")
    async def load(request: Request) -> Response:
        return PlainTextResponse(await asyncio.to_thread(adapters.load, await request.body()))

    @routes.post("/unload_lora_adapter")
    async def unload(request: Request) -> Response:
        return PlainTextResponse(await asyncio.to_thread(adapters.unload, await request.body()))

    return routes


def path_below(root: Path, given: str) -> Path:
    """Return the path that ``given`` names; relative ones begin at ``root``.

    Raises:
        NotAllowedError: it leads outside of ``root``, also through links, or it is no path.
    """
    top = root.resolve()
    try:
        path = (top / given).resolve()
        # names that are too long fail only when they are looked up
        is_below = path.is_relative_to(top) and path.exists() in (True, False)
    except (OSError, ValueError, RuntimeError):
        is_below = False
    if not is_below:
        raise NotAllowedError(
            Problem(
                where=Place(key=("lora_path",)),
                found=repr(given[:200]),
                allowed=f"a path below {root}",
                hint="Copy the adapter there, or start the server with another --lora-root.",
            )
        )
    return path
