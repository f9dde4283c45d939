"""The clients of one process of ``http_streams``: connections that read streamed answers. Imports nothing slow."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any


async def stream(port: int, body: bytes, begin: float) -> tuple[float, float, int]:
    """Return seconds to the first token, to the end, and the number of pieces of one streamed answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    await asyncio.sleep(max(0.0, begin - time.time()))
    begun = time.perf_counter()
    writer.write(head + body)
    first, count, end = 0.0, 0, b""
    while b"[DONE]" not in end:
        piece = await reader.read(1 << 16)
        if not piece:
            raise ConnectionError(f"the server ended a stream behind {end!r}")
        # a mark may be cut in two
        both = end[-5:] + piece
        count += both.count(b'"text"') - end[-5:].count(b'"text"')
        if count and not first:
            first = time.perf_counter() - begun
        end = both[-64:]
    writer.close()
    return first, time.perf_counter() - begun, count


def body_of(place: int, asked: dict[str, Any]) -> bytes:
    chance = random.Random(place)
    tokens = [chance.randrange(asked["vocab_size"]) for _ in range(asked["prompt"])]
    sent = {"model": "base", "prompt": tokens, "max_tokens": asked["new"], "stream": True, "ignore_eos": True}
    return json.dumps({**sent, "temperature": 0.0, "seed": place}).encode()


async def run(asked: dict[str, Any]) -> list[tuple[float, float, int]]:
    bodies = [body_of(place, asked) for place in asked["places"]]
    return list(await asyncio.gather(*(stream(asked["port"], body, asked["begin"]) for body in bodies)))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
