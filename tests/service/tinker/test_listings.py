"""What there is: samplers by the paths of their versions, checkpoints by their models."""

from __future__ import annotations

from tests.service.tinker.tinker_calls import TinkerCalls
from tests.service.tinker.trained_models import trained


def test_a_sampler_of_a_saved_version_is_opened_by_its_path(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    trained(client, model_id, steps=1)
    path = client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 3, "path": "v1"})["path"]
    assert path == f"tinker://{model_id}/sampler_weights/v1"
    asked = {"session_id": client.session_id, "sampling_session_seq_id": 0, "model_path": path}
    sampler_id = client.done("create_sampling_session", asked)["sampling_session_id"]
    assert client.get(f"samplers/{sampler_id}")["model_path"] == path
    refused = client.result(
        "load_weights", {"session_id": client.session_id, "model_seq_id": 5, "path": path, "optimizer": False}
    )
    assert "is for sampling; allowed: a training checkpoint" in refused["error"]
