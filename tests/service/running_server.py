"""A server in threads of this process, for a tiny model with adapters of several ranks, and what answers should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.service.listening import listen
from cohort.service.metrics import ServerMetrics
from cohort.service.opening import Opened, open_served
from cohort.service.serve_app import build_app
from cohort.service.settings import ServedSettings, ServerSettings
from cohort.service.streams.lent_connection import LendingProtocol
from tests.cli.tiny_task import write_tiny_model

__all__ = ["RunningServer", "running", "write_adapter", "write_served"]


def write_adapter(model: Path, folder: Path, *, r: int, seed: int, scale: float = 0.5) -> Path:
    """Write a random adapter that changes the model's answers."""
    linears = linear_shapes(read_config(model))
    layout = AdapterLayout(linears)
    folder.mkdir(parents=True, exist_ok=True)
    weights = torch.randn(r, layout.width, generator=torch.Generator().manual_seed(seed)) * scale
    spec = AdapterSpec(r=r, lora_alpha=r)
    (folder / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, weights))
    config = adapter_config(spec, base_model=str(model), target_modules=["q_proj"])
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return folder


def write_served(folder: Path) -> Path:
    """Write a model and, in ``adapters``, three adapters of ranks 4, 8 and 16; return the model."""
    write_tiny_model(folder / "model", max_positions=384)
    for index, r in enumerate((4, 8, 16)):
        write_adapter(folder / "model", folder / "adapters" / f"a{index}", r=r, seed=index)
    return folder / "model"


@dataclass
class RunningServer:
    """A server that listens.

    Attributes:
        url: Its address, without ``/v1``.
    """

    opened: Opened
    url: str

    def post(self, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=120, **options)

    def complete(self, model: str, prompt: Any, **settings: Any) -> str:
        """Return the greedy answer to a prompt."""
        body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, **settings}
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def assert_nothing_is_held(self) -> None:
        """Check that no request, block or adapter is in use once all clients are gone."""
        thread = self.opened.thread
        for _ in range(200):
            if thread.num_open == 0 and thread.engine.num_live == 0:
                break
            threading.Event().wait(0.02)
        assert thread.num_open == 0
        assert thread.engine.num_live == 0
        assert thread.engine.blocks.num_used == 0
        assert all(resident.users == 0 for resident in self.opened.model.pool._residents.values())
        assert not thread._subscribers


@contextmanager
def running(served: ServedSettings, settings: ServerSettings | None = None) -> Iterator[RunningServer]:
    """Serve until the block ends."""
    settings = settings or ServerSettings()
    opened = open_served(served, settings.limits)
    tinker = opened.tinker
    routes = None if tinker is None else tinker.routes.router()
    app = build_app(opened.model, opened.thread, settings=settings, metrics=ServerMetrics("tiny"), tinker=routes)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http=LendingProtocol, log_level="warning", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    opened.thread.start()
    if tinker is not None:
        tinker.trainer.start()
    if opened.sweeps is not None:
        opened.sweeps.start()
    thread.start()
    host, port = listener.getsockname()[:2]
    try:
        yield RunningServer(opened, f"http://{host}:{port}")
    finally:
        server.should_exit = True
        thread.join(60)
        if opened.sweeps is not None:
            opened.sweeps.close()
        if tinker is not None:
            tinker.close()
        opened.thread.close(drain_seconds=0)
        if opened.divided is not None:
            opened.divided.close()
        listener.close()
