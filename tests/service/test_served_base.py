"""Which base model is served, and which adapters are refused for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.prepare.fingerprints import model_fingerprint
from cohort.service.served_base import OtherBaseError, ServedBase
from tests.service.running_server import RunningServer


def test_an_adapter_of_another_base_model_is_refused_and_one_without_a_card_is_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    served = ServedBase(tmp_path)
    served.require(model_fingerprint(tmp_path), of="mine")
    served.check(tmp_path / "no-adapter")
    with pytest.raises(OtherBaseError, match="another base model"):
        served.require("0" * 64, of="mine")


def test_a_server_says_before_there_is_an_adapter_that_its_base_model_is_another(
    server: RunningServer, model: Path
) -> None:
    body = {"lora_name": "later", "lora_path": "not-there-yet"}
    other = server.post("/v1/load_lora_adapter", body | {"base_model_sha256": "0" * 64})
    assert (other.status_code, "another base model" in other.json()["error"]["message"]) == (412, True)
    same = server.post("/v1/load_lora_adapter", body | {"base_model_sha256": model_fingerprint(model)})
    assert (same.status_code, "no such" in same.json()["error"]["message"]) == (400, True)
