"""A server whose model is divided over processes: the answers of one process, and an end that clients are told of."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from cohort.core.errors import InputError
from cohort.service.opening import open_served
from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.running_server import running, write_adapter, write_served

PROMPTS = {"base": "1+2=", "a0": "3+4= and some more text", "a1": "5+1=", "a2": "7"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("served"))


def settings_of(model: Path, *, size: int) -> ServedSettings:
    return ServedSettings(
        model=str(model),
        adapters=(str(model.parent / "adapters"),),
        names=("base",),
        gpus=0,
        pool=AdapterPoolSettings(max_loras=2, max_lora_rank=16, max_cpu_loras=2),
        tensor_parallel_size=size,
    )


def test_two_processes_answer_as_one_and_the_end_of_one_is_the_end(model: Path) -> None:
    http = ServerSettings(lora_root=model.parent)
    with running(settings_of(model, size=1), http) as alone:
        expected = {name: alone.complete(name, prompt) for name, prompt in PROMPTS.items()}
    with running(settings_of(model, size=2), http) as server:
        assert {name: server.complete(name, prompt) for name, prompt in PROMPTS.items()} == expected
        assert "computing on 2 processes of the CPU in float32" in server.opened.notes
        write_adapter(model, model.parent / "later", r=8, seed=1)
        body = {"lora_name": "a0", "lora_path": "later", "load_inplace": True}
        assert server.post("/v1/load_lora_adapter", body).status_code == 200
        # the weights of a1 under another name
        assert server.complete("a0", PROMPTS["a1"]) == expected["a1"]
        server.assert_nothing_is_held()
        divided = server.opened.divided
        assert divided is not None
        os.kill(divided._processes[0].process_id, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not server.opened.thread.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "ended by SIGKILL; start the server again" in (server.opened.thread.lost or "")
        assert httpx.get(f"{server.url}/health").status_code == 503
        answer = server.post("/v1/completions", {"model": "base", "prompt": "1"})
        assert answer.status_code == 503


def test_a_degree_that_does_not_divide_the_model_starts_nothing(model: Path) -> None:
    with pytest.raises(InputError, match=r"4 ranks for a model with 2 key-value heads; allowed: .*: 1, 2"):
        open_served(settings_of(model, size=4), ServerLimits())
