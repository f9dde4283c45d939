"""One server that trains for clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.running_server import RunningServer, running
from tests.service.tinker.tinker_calls import TinkerCalls


@pytest.fixture(scope="session")
def tinker_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = ServedSettings(
        model=str(model),
        names=("base",),
        gpus=0,
        pool=AdapterPoolSettings(max_loras=4, max_lora_rank=16),
        tinker=tmp_path_factory.mktemp("tinker"),
        # fewer than the tests train at once
        max_trained_models=2,
    )
    limits = ServerLimits(max_waiting=64, max_body_bytes=200_000, max_prompts=16)
    with running(settings, ServerSettings(limits=limits)) as server:
        yield server


@pytest.fixture
def client(tinker_server: RunningServer) -> Iterator[TinkerCalls]:
    with TinkerCalls(tinker_server.url) as calls:
        calls.begin()
        yield calls
