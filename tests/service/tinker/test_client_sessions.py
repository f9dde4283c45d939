"""A session that ends frees what it held, and what it saved stays."""

from __future__ import annotations

from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls
from tests.service.tinker.trained_models import trained


def test_a_session_that_ends_frees_what_it_held(client: TinkerCalls, tinker_server: RunningServer) -> None:
    model_id = client.model(rank=4)
    trained(client, model_id, steps=1)
    client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 3, "sampling_session_seq_id": 0})
    client.result("save_weights", {"model_id": model_id, "seq_id": 4, "path": "kept"})
    client.done(f"sessions/{client.session_id}/finish", {"reason": {"type": "success"}})
    assert client.post("get_info", {"model_id": model_id}).status_code == 404
    assert not [each for each in tinker_server.opened.model.pool.statuses() if each.name.startswith(client.session_id)]
    client.begin()
    again = {"session_id": client.session_id, "model_seq_id": 0, "path": f"tinker://{model_id}/weights/kept"}
    assert "error" not in client.result("load_weights", {**again, "optimizer": True})
