"""A service in threads of this process, with its dispatcher and one worker on the CPU, and what clients need of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import uvicorn

from cohort.cli.demo import quickstart_folder
from cohort.service.hosting.opening import OpenService, first_key, open_service
from cohort.service.hosting.service_app import build_service_app
from cohort.service.hosting.service_file import BaseSection, LimitsSection, ServiceFile, ServingSection, WorkersSection
from cohort.service.listening import listen
from cohort.service.streams.lent_connection import LendingProtocol
from cohort.service.usage_book import UsageBook
from cohort.store.enums import KeyScope
from cohort.store.tenants.keys import TENANT_SCOPES
from cohort.store.tenants.tenants import Quotas

__all__ = ["RunningService", "chat_rows", "pair_rows", "running_service", "wait_for"]


@dataclass
class RunningService:
    """A service that listens.

    Attributes:
        url: Its address, without ``/v1``.
        key: The first administrator's key.
    """

    opened: OpenService
    url: str
    key: str

    def client(self, key: str | None = None) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0)

    def tenant(self, name: str, *, quotas: Quotas | None = None, scopes: frozenset[KeyScope] | None = None) -> str:
        """Return a key of a new organisation with one project."""
        tenants = self.opened.store.tenants
        # a fixture of a module may be made again when its tests are divided over processes
        taken = {organisation.name for organisation in tenants.organisations()}
        free = next(f"{name}{number or ''}" for number in range(len(taken) + 1) if f"{name}{number or ''}" not in taken)
        organisation = tenants.add_organisation(free, actor="test")
        project = tenants.add_project(organisation.id, "only", actor="test", quotas=quotas)
        scopes = TENANT_SCOPES if scopes is None else scopes
        return self.opened.store.keys.create(project.id, actor="test", scopes=scopes).text


@contextmanager
def running_service(
    folder: Path,
    *,
    limits: LimitsSection | None = None,
    url: str | None = None,
    blobs: str | None = None,
    share_base: bool = False,
) -> Iterator[RunningService]:
    """Serve the quickstart's model until the block ends.

    Args:
        url: A database's; None: SQLite in the folder.
        blobs: Where files and adapters are; None: in the folder.
    """
    file = ServiceFile(
        folder=str(folder),
        name="node",
        database=url,
        blobs=str(folder / "blobs") if blobs is None and url is not None else blobs,
        port=0,
        workers=WorkersSection(cpu=1, share_base=share_base),
        serving=ServingSection(gpus=0, max_loras=2, max_lora_rank=16),
        limits=limits or LimitsSection(lease_seconds=3.0, max_file_mib=1),
    )
    opened = open_service(file, bases=(BaseSection(name="base", model=str(quickstart_folder() / "base_model")),))
    book = UsageBook(opened.store)
    app = build_service_app(opened, book)
    config = uvicorn.Config(app, http=LendingProtocol, log_level="warning", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    for base in opened.served.bases.values():
        base.thread.start()
    book.start()
    opened.runner.start()
    thread.start()
    host, port = listener.getsockname()[:2]
    try:
        yield RunningService(opened, f"http://{host}:{port}", first_key(opened.store, owner="test") or "")
    finally:
        server.should_exit = True
        thread.join(30)
        opened.runner.close()
        for base in opened.served.bases.values():
            base.thread.close(drain_seconds=0)
            base.model.pool.close()
        book.close()
        opened.store.close()
        listener.close()


def wait_for(what: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    """Return the first true value of ``what``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"nothing after {seconds:g} seconds")


def _cafe(name: str, count: int) -> list[dict[str, str]]:
    lines = (quickstart_folder() / f"{name}.jsonl").read_text().splitlines()[:count]
    return [json.loads(line) for line in lines]


def chat_rows(count: int, *, name: str = "train") -> bytes:
    """Return the quickstart's rows as OpenAI's chat rows."""
    rows = (
        {
            "messages": [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": row["completion"]},
            ]
        }
        for row in _cafe(name, count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def pair_rows(count: int) -> bytes:
    """Return the quickstart's rows as OpenAI's preference rows: the ticket, and another one's."""
    rows = _cafe("train", count)
    pairs = (
        {
            "input": {"messages": [{"role": "user", "content": row["prompt"]}]},
            "preferred_output": [{"role": "assistant", "content": row["completion"]}],
            "non_preferred_output": [{"role": "assistant", "content": f"Sorry, {other['completion']}"}],
        }
        for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)
    )
    return "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
