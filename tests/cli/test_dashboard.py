"""``cohort dashboard``: what it refuses before it listens, and that it answers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cohort.cli.main import main
from tests.runs.small_run import write_small_run


def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COHORT_API_KEY", raising=False)
    for arguments, words in (
        ([str(tmp_path / "nothing")], "the folder that `cohort tune -o` writes to"),
        ([str(tmp_path), "--host", "0.0.0.0"], "--api-key"),
        ([str(tmp_path), "--gpu-hour", "2.49"], '--gpu-hour "2.49 USD"'),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["dashboard", *arguments])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err


def test_it_listens_says_where_and_ends_on_a_signal(tmp_path: Path) -> None:
    write_small_run(tmp_path / "run")[1].close()
    command = [sys.executable, "-m", "cohort", "dashboard", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]
            run = httpx.get(f"{address}api/run", params={"run": "run"}, timeout=60).json()
            # the list waits less than a second for the numbers of a run that was not read before
            assert httpx.get(f"{address}api/runs", timeout=60).json()["runs"][0]["num_trials"] == 4
            # somebody watches: the stream ends with the server, without a word
            query = {"run": "run", "after": f"{run['generation']}:{run['number']}:{run['position']}"}
            with httpx.stream("GET", f"{address}api/run/events", params=query, timeout=60) as events:
                lines = events.iter_lines()
                assert next(lines) == "retry: 2000"
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line] == []
            _, errors = process.communicate(timeout=60)
        finally:
            # a second SIGTERM, or one after its handlers are gone, would end it in another way
            process.kill()
    assert errors == ""
    assert process.returncode == 0
