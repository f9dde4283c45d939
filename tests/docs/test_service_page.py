"""The commands of the page about a service are run as they are written there, against a service that they start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.service.hosting.service_process import service_process

PAGE = REPOSITORY / "docs" / "how-to" / "service.md"
# what is searched stays as it is; fewer rows and epochs end sooner
SOONER = {"[:40]": "[:24]", '"suffix": "cafe"': '"suffix": "cafe", "hyperparameters": {"n_epochs": 3}'}


def commands(section: str) -> str:
    """Return the shell commands of a section: its blocks in which a request is sent."""
    return "\n".join(block for block in blocks(section) if "curl" in block)


def blocks(section: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_commands_lead_from_rows_to_an_answer_of_the_tuned_model(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = commands("From nothing to a tuned model")
    for written, instead in SOONER.items():
        assert written in script
        script = script.replace(written, instead)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples", target_is_directory=True)
    with service_process(tmp_path / "cohort-service") as service:
        given = f"export KEY={service.key} URL={service.url}/v1"
        script, count = re.subn(r"^export KEY=\S+ URL=\S+$", given, script, flags=re.MULTILINE)
        assert count == 1
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
        assert done.returncode == 0, done.stderr + done.stdout
        python = blocks("From Python")[0].replace("http://127.0.0.1:8000/v1", f"{service.url}/v1")
        names: dict[str, Any] = {"KEY": service.key}
        exec(python.replace("rows.jsonl", str(tmp_path / "rows.jsonl")), names)
        job = names["client"].fine_tuning.jobs.retrieve(names["job"].id)
        names["client"].close()
        assert job.status in ("validating_files", "queued", "running", "succeeded")
    assert "succeeded" in done.stdout
    answer = json.loads(done.stdout[done.stdout.rindex('{"id"') :])
    assert answer["model"].startswith("ft:quickstart:default:cafe:")
    assert answer["choices"][0]["message"]["content"].strip()
