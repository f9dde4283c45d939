"""One server has a folder, and a full disk takes no call in part."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.service.tinker.durability import _locked
from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls, pass_message
from tests.service.tinker.trained_models import data, trained


def test_a_folder_is_of_one_server(tmp_path: Path) -> None:
    lock = _locked(tmp_path / "folder" / ".journal")
    with pytest.raises(InputError, match=r"--tinker: found .*folder, in use by process .*; allowed: a folder of one"):
        _locked(tmp_path / "folder" / ".journal")
    lock.release()
    _locked(tmp_path / "folder" / ".journal").release()


def test_calls_are_refused_while_the_disk_is_full_and_go_on_afterwards(
    client: TinkerCalls, tinker_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinker = tinker_server.opened.tinker
    assert tinker is not None
    model_id, twin = client.model(rank=4, seed=5), client.model(1, rank=4, seed=5)
    full, write = tinker.routes._journal._file, os.write

    def refusing(file: int, content: Any) -> int:
        if file != full:
            return write(file, content)
        # as much of it as there is room for
        write(file, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refusing)
        for path, body in (
            ("forward_backward", pass_message(model_id, 1, data())),
            ("optim_step", {"model_id": model_id, "seq_id": 1, "adam_params": {}}),
            ("create_session", {}),
        ):
            refused = client.post(path, body)
            assert refused.status_code == 507
            assert "no call is taken" in refused.json()["detail"]
        assert client.post("retrieve_future", {"request_id": f"{model_id}:1"}).status_code == 410
    assert trained(client, model_id, steps=2) == trained(client, twin, steps=2)
