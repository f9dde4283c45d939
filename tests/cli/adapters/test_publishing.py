"""``--publish``: the server is asked before the sweep, told after it, and the user hears of a doubtful gain."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.cli.adapters import publishing
from cohort.cli.adapters.publishing import announcement
from cohort.core.errors import InputError
from cohort.integrations.publish import AdapterServer
from cohort.runs.directory import RunDirectory

URL = "http://127.0.0.1:8000"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Path]]:
    told: list[tuple[str, str, Path]] = []
    for verb in ("check", "load"):
        monkeypatch.setattr(
            AdapterServer,
            verb,
            lambda _, name, folder, verb=verb, **__: told.append((verb, name, folder)),
            raising=True,
        )
    return told


def test_without_a_server_nothing_is_announced(tmp_path: Path, told: list[tuple[str, str, Path]]) -> None:
    announcement(RunDirectory(tmp_path), None, name=None, base_sha256=str)()
    assert told == []
    with pytest.raises(InputError, match="--publish-as without --publish"):
        announcement(RunDirectory(tmp_path), None, name="mine", base_sha256=str)


@pytest.mark.parametrize(("name", "expected"), [(None, "sweep"), ("mine", "mine")])
@pytest.mark.parametrize("doubt", [None, "the best adapter is no better than the base model"])
def test_the_server_is_asked_first_and_told_last(
    tmp_path: Path,
    told: list[tuple[str, str, Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
    expected: str,
    doubt: str | None,
) -> None:
    monkeypatch.setattr(publishing, "_doubt", lambda _: doubt)
    directory = RunDirectory(tmp_path / "sweep")
    announce = announcement(directory, URL, name=name, base_sha256=str)
    assert told == [("check", expected, directory.best)]
    announce()
    assert told[1:] == [("load", expected, directory.best)]
    shown = capsys.readouterr().err
    assert f"{URL} answers requests for {expected} with it" in shown
    assert ("warning: " in shown) == (doubt is not None)
    assert doubt is None or f"{doubt}; POST {URL}/v1/unload_lora_adapter" in shown
