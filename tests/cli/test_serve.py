"""A server needs packages that training does not: one that is missing is named, with the command that installs it."""

from __future__ import annotations

import importlib.util

import pytest

from cohort.cli.main import main


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    with pytest.raises(SystemExit) as caught:
        main(["serve", "anything"])
    assert caught.value.code == 2
    assert "pip install 'cohort-lora[serve]'" in capsys.readouterr().err
