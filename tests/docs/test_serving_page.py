"""The session of the serving page runs: the server as its first commands start it, and the client's lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort.cli.main import main
from cohort.service.settings import ServedSettings
from tests.cli.tiny_task import write_tiny_task
from tests.conftest import REPOSITORY
from tests.docs.documents import blocks_of
from tests.service.running_server import running

PAGE = Path("docs/how-to/serving.md")


def test_the_clients_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_tiny_task(tmp_path)
    with pytest.raises(SystemExit):
        main(["tune", str(task), "-o", str(tmp_path / "runs" / "mine")])
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_of(PAGE, "python")
    assert block.needs == "server"
    assert "cohort serve runs/mine" in (REPOSITORY / PAGE).read_text()
    capsys.readouterr()
    # the run's task names its base model `model`
    with running(ServedSettings(model="runs/mine", names=("model",), gpus=0)) as server:
        exec(block.text.replace("http://127.0.0.1:8000", server.url), {})
    assert capsys.readouterr().out.startswith("['model', 'mine']")


def test_options_on_the_page_are_options_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for verb in ("serve", "tune"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        shown += capsys.readouterr().out
    named = set(re.findall(r"`(--[a-z-]+)", (REPOSITORY / PAGE).read_text()))
    assert len(named) > 12
    for option in named:
        assert option[:20] in shown, option
