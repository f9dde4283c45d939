"""A session that ends frees what it held, and what it saved stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cohort.service.tinker.client_sessions import (
    _MOST_OWNERS,
    MOST_SNAPSHOTS,
    ClientSessions,
    UnknownSessionError,
)
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


def test_of_the_versions_without_a_name_those_that_were_used_last_are_kept(
    client: TinkerCalls, tinker_server: RunningServer
) -> None:
    model_id = client.model(rank=4)
    ask: dict[str, Any] = {"prompt": {"chunks": [{"tokens": [5, 9]}]}, "sampling_params": {"max_tokens": 1}}
    names = []
    for number in range(MOST_SNAPSHOTS + 2):
        body = {"model_id": model_id, "seq_id": 1 + number, "sampling_session_seq_id": number}
        names.append(client.result("save_weights_for_sampler", body)["sampling_session_id"])
        # the first one is the reference of all steps
        assert isinstance(client.result("asample", {**ask, "sampling_session_id": names[0], "seq_id": number}), bytes)
    known = tinker_server.opened.tinker
    assert known is not None
    assert [name for name in names if name in known.routes._sessions.samplers] == [names[0], *names[3:]]
    assert client.post("asample", {**ask, "sampling_session_id": names[1], "seq_id": 1}).status_code == 404


def test_a_client_that_is_not_heard_of_makes_room_by_itself(client: TinkerCalls, tinker_server: RunningServer) -> None:
    tinker = tinker_server.opened.tinker
    assert tinker is not None
    model_id = client.model(rank=4)
    trained(client, model_id, steps=1)
    sessions = tinker.routes._sessions
    session = sessions.sessions[client.session_id]
    session.heard -= 1000
    client.post("get_info", {"model_id": model_id})
    assert sessions.silent(seconds=100) == []
    session.heard -= 1000
    deadline = time.monotonic() + 20
    while model_id in tinker.trainer.executor.models:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.post("session_heartbeat", {"session_id": client.session_id}).status_code == 410


@contextmanager
def held(name: str, owner: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let a method begin and wait until the block ends; yield what says that it has begun."""
    begun, may_go_on, method = threading.Event(), threading.Event(), getattr(owner, name)

    def waiting(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert may_go_on.wait(20)
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, waiting)
    yield begun
    monkeypatch.undo()
    may_go_on.set()


def test_a_session_that_ends_while_a_version_is_published_leaves_none(
    client: TinkerCalls, tinker_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinker = tinker_server.opened.tinker
    assert tinker is not None
    model_id = client.model(rank=4)
    with held("publish", tinker.routes._versions, monkeypatch) as begun:
        body = {"model_id": model_id, "seq_id": 1, "sampling_session_seq_id": 0}
        request_id = client.done("save_weights_for_sampler", body)["request_id"]
        assert begun.wait(20)
        client.done(f"sessions/{client.session_id}/finish", {})
    assert "its session has ended" in client.retrieve(request_id)["error"]
    assert not [each for each in tinker_server.opened.model.pool.statuses() if each.name.startswith(client.session_id)]
    assert not [name for name in tinker.routes._sessions.samplers if name.startswith(client.session_id)]


def test_a_session_that_lives_keeps_its_owner_however_many_begin() -> None:
    sessions = ClientSessions()
    sessions.begin("first", owner="one")
    for number in range(_MOST_OWNERS + 1):
        sessions.begin(f"other{number}", owner="two")
    assert sessions.owner_of("first:train:0") == "one"
    with pytest.raises(UnknownSessionError):
        sessions.session("first", asker="two")
