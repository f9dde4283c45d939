"""What one key has made is unknown to every other key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.service.settings import ServedSettings, ServerSettings
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.running_server import RunningServer, running
from tests.service.tinker.tinker_calls import TinkerCalls, pass_message
from tests.service.tinker.trained_models import data, trained


@pytest.fixture(scope="module")
def keyed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("keyed")
    pool = AdapterPoolSettings(max_loras=4, max_lora_rank=16)
    settings = ServedSettings(model=str(model), names=("base",), gpus=0, pool=pool, tinker=folder)
    with running(settings, ServerSettings(api_keys=("tml-one", "tml-two"))) as server:
        yield server


def test_another_key_knows_none_of_the_ids(keyed: RunningServer) -> None:
    with (
        TinkerCalls(keyed.url, **{"X-API-Key": "tml-one"}) as one,
        TinkerCalls(keyed.url, **{"X-API-Key": "tml-two"}) as two,
    ):
        one.begin()
        two.begin()
        model_id = one.model(rank=4)
        trained(one, model_id, steps=1)
        path = one.result("save_weights", {"model_id": model_id, "seq_id": 3, "path": "mine"})["path"]
        body: dict[str, Any] = {"model_id": model_id, "seq_id": 4, "sampling_session_seq_id": 0}
        sampler = one.result("save_weights_for_sampler", body)["sampling_session_id"]
        ask = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [5]}]}}
        foreign: dict[str, dict[str, Any] | bytes] = {
            "forward_backward": pass_message(model_id, 5, data()),
            "optim_step": {"model_id": model_id, "seq_id": 5, "adam_params": {}},
            "save_weights": {"model_id": model_id, "seq_id": 5, "path": "theirs"},
            "load_weights": {"session_id": two.session_id, "model_seq_id": 0, "path": path},
            "create_model": {"session_id": one.session_id, "model_seq_id": 1, "base_model": "base"},
            "create_sampling_session": {
                "session_id": two.session_id,
                "sampling_session_seq_id": 0,
                "model_path": path,
            },
            "asample": ask,
            "get_info": {"model_id": model_id},
            "unload_model": {"model_id": model_id},
            "weights_info": {"tinker_path": path},
            f"sessions/{one.session_id}/finish": {},
        }
        for call, sent in foreign.items():
            assert two.post(call, sent).status_code == 404, call
        # no body that is wrong elsewhere skips a number of another key's model
        assert two.post("optim_step", {"model_id": model_id, "seq_id": 5, "adam_params": 1}).status_code == 400
        for call in ("retrieve_future", "cancel_future"):
            assert two.post(call, {"request_id": f"{model_id}:1"}).status_code == 410
        assert two.post("session_heartbeat", {"session_id": one.session_id}).status_code == 410
        assert two.get("training_runs")["training_runs"] == []
        assert two.get("checkpoints")["checkpoints"] == two.get(f"training_runs/{model_id}/checkpoints")["checkpoints"]
        assert two.get("sessions")["sessions"] == [two.session_id]
        assert two.delete(f"training_runs/{model_id}/checkpoints/weights/mine") == 404
        listed = httpx.get(f"{keyed.url}/v1/models", headers={"Authorization": "Bearer tml-two"}).json()
        assert [each["id"] for each in listed["data"]] == ["base"]
        # all of it is as its own key left it
        trained(one, model_id, first=5, steps=1)
        assert isinstance(one.result("asample", ask), bytes)
        assert [run["training_run_id"] for run in one.get("training_runs")["training_runs"]] == [model_id]
        assert one.get("checkpoints")["checkpoints"][0]["tinker_path"] == path


def test_what_is_published_can_be_read_by_every_key_and_changed_by_its_own(keyed: RunningServer) -> None:
    with (
        TinkerCalls(keyed.url, **{"X-API-Key": "tml-one"}) as one,
        TinkerCalls(keyed.url, **{"X-API-Key": "tml-two"}) as two,
    ):
        one.begin()
        two.begin()
        model_id = one.model(rank=4)
        trained(one, model_id, steps=1)
        path = one.result("save_weights", {"model_id": model_id, "seq_id": 3, "path": "shared"})["path"]
        publish = f"training_runs/{model_id}/checkpoints/weights/shared/publish"
        load = {"session_id": two.session_id, "path": path, "optimizer": True}
        assert two.post(publish, {}).status_code == 404
        # a repeat is the same call
        assert [one.post(publish, {}).status_code for _ in range(2)] == [204, 204]
        assert one.get(f"training_runs/{model_id}/checkpoints")["checkpoints"][0]["public"] is True
        assert two.done("weights_info", {"tinker_path": path})["lora_rank"] == 4
        loaded = two.result("load_weights", {**load, "model_seq_id": 0})["model_id"]
        assert trained(two, loaded, first=1, steps=1) == trained(one, model_id, first=4, steps=1)
        for attempt in (two.delete(publish), two.delete(publish.removesuffix("/publish"))):
            assert attempt == 404
        assert one.delete(publish) == 204
        assert two.post("load_weights", {**load, "model_seq_id": 1}).status_code == 404
