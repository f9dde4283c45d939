"""One server for the tests of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.hosting.running_service import RunningService, running_service
from tests.service.running_server import RunningServer, running, write_served
from tests.service.server_template import ServerTemplate


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server_template() -> Iterator[ServerTemplate]:
    """What servers that are killed are forks of."""
    template = ServerTemplate()
    yield template
    template.close()


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[RunningServer]:
    settings = ServedSettings(
        model=str(model),
        adapters=(str(model.parent / "adapters"),),
        names=("base",),
        gpus=0,
        chat_template="chatml",
        # fewer slots than adapters, so that they take turns
        pool=AdapterPoolSettings(max_loras=2, max_lora_rank=16),
    )
    limits = ServerLimits(max_waiting=64, max_body_bytes=200_000, max_prompts=16)
    with running(settings, ServerSettings(lora_root=model.parent, limits=limits)) as running_server:
        yield running_server


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service"), share_base=True) as found:
        yield found
