"""A server needs packages that training does not, and shows no run without a key: both are reported at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cohort.cli.main import main


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    with pytest.raises(SystemExit) as caught:
        main(["serve", "anything"])
    assert caught.value.code == 2
    assert "pip install 'cohort-lora[serve]'" in capsys.readouterr().err


def test_pages_over_runs_are_not_opened_to_everybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COHORT_API_KEY", raising=False)
    for words, said in (
        (["--dashboard", str(tmp_path), "--host", "0.0.0.0"], "--api-key"),
        (["--dashboard", str(tmp_path / "nothing")], "the folder that `cohort tune -o` writes to"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["serve", "model", *words])
        assert ended.value.code == 2, "before the model is looked for"
        assert said in capsys.readouterr().err
