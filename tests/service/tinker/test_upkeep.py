"""The journal stays short: no segment waits for a model that never gets a snapshot."""

from __future__ import annotations

import time

import pytest

from cohort.service.tinker.journal.records import Record
from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls
from tests.service.tinker.trained_models import trained


def test_models_that_could_not_be_made_or_are_gone_hold_no_segment(
    client: TinkerCalls, tinker_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinker = tinker_server.opened.tinker
    assert tinker is not None
    journal = tinker.routes._journal
    model_id = client.model(rank=4)
    saved = client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 1, "path": "sampler"})
    # it is there, and cannot be trained
    body = {"session_id": client.session_id, "model_seq_id": 7, "path": saved["path"], "optimizer": True}
    assert "is for sampling" in client.result("load_weights", body)["error"]
    never_made = f"{client.session_id}:train:7"
    # the trainer's thread passes a gap over while the session ends
    journal.append(Record(kind="skip", about={"model": "gone:train:0", "first": 3, "number": 3}))
    next_segment = journal._next_number()
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_segment_bytes", 500)
        trained(client, model_id, first=2, steps=2)
        until = time.monotonic() + 30
        while journal._next_number() == next_segment or journal.behind() & {never_made, "gone:train:0"}:
            assert time.monotonic() < until, journal.behind()
            time.sleep(0.05)
