"""Clients of a Tinker server, each with a loop of its own: the calls of the ``tinker`` package, made with httpx.

``python -m benchmarks.serving.tinker_clients URL`` reads one JSON object a line, with the ``rows`` of each client, its
``rank``, the number of ``steps`` and ``apart``, and prints what these clients measured as one line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from tests.service.tinker.tinker_calls import pass_message

_MESSAGE = {"Content-Type": "application/x-protobuf"}
WARM_STEPS = 2


class Client:
    """One loop on one model."""

    def __init__(self, http: httpx.AsyncClient, rows: Sequence[Sequence[int]]) -> None:
        self._http, self._number, self._session, self._model = http, 0, "", ""
        self._data = [(row[:-1], {"target_tokens": row[1:], "weights": [1.0] * (len(row) - 1)}) for row in rows]

    async def _send(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        sent: dict[str, Any] = {"content": body, "headers": _MESSAGE} if isinstance(body, bytes) else {"json": body}
        while True:
            try:
                answer = await self._http.post(path, **sent)
            except httpx.TransportError:
                # a connection that was idle may be closed just when it is used; a repeated call is the same call
                continue
            answer.raise_for_status()
            return answer

    async def _post(self, path: str, body: dict[str, Any] | bytes) -> Any:
        return (await self._send(path, body)).json()

    async def _result(self, request_id: str) -> None:
        while True:
            answer = await self._send("retrieve_future", {"request_id": request_id})
            if answer.headers["content-type"] == "application/x-protobuf":
                return
            found = answer.json()
            assert "error" not in found, found
            if found.get("type") != "try_again":
                return

    async def open(self, *, rank: int) -> None:
        self._session = (await self._post("create_session", {"tags": [], "sdk_version": "0.38.0"}))["session_id"]
        body = {"session_id": self._session, "model_seq_id": 0, "base_model": "base", "lora_config": {"rank": rank}}
        made = await self._post("create_model", body)
        self._model = made["model_id"]
        await self._result(made["request_id"])

    async def close(self) -> None:
        await self._post(f"sessions/{self._session}/finish", {"reason": {"type": "success"}})

    async def _send_pass(self) -> str:
        self._number += 1
        sent = await self._post("forward_backward", pass_message(self._model, self._number, self._data))
        return str(sent["request_id"])

    async def _send_step(self) -> str:
        self._number += 1
        body = {"model_id": self._model, "seq_id": self._number, "adam_params": {"learning_rate": 1e-3}}
        return str((await self._post("optim_step", body))["request_id"])

    async def apart(self) -> tuple[float, float]:
        """Return the seconds from each of a step's two calls to its answer, one after the other."""
        begun = time.perf_counter()
        await self._result(await self._send_pass())
        middle = time.perf_counter()
        await self._result(await self._send_step())
        return middle - begun, time.perf_counter() - middle

    async def loop(self, num_steps: int) -> None:
        """Take steps as the cookbook's loops do: both calls are sent before the first answer is read."""
        for _ in range(num_steps):
            passed, stepped = await self._send_pass(), await self._send_step()
            await self._result(passed)
            await self._result(stepped)


async def measured(http: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of all steps, or with ``apart`` those of each call."""
    clients = [Client(http, rows) for rows in asked["rows"]]
    for client in clients:
        await client.open(rank=asked["rank"])
    await asyncio.gather(*(client.loop(WARM_STEPS) for client in clients))
    begun = time.perf_counter()
    if asked["apart"]:
        pairs = [await clients[0].apart() for _ in range(asked["steps"])]
        found: dict[str, Any] = {"passes": [one for one, _ in pairs], "steps": [other for _, other in pairs]}
    else:
        await asyncio.gather(*(client.loop(asked["steps"]) for client in clients))
        found = {"seconds": time.perf_counter() - begun}
    for client in clients:
        await client.close()
    return found


async def main() -> None:
    """Answer line by line."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=f"{sys.argv[1]}/api/v1/", timeout=120, limits=limits) as http:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await measured(http, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
