"""The container and compose files, as far as they can be checked without docker."""

from __future__ import annotations

import http.server
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from cohort.cli.main import build_app
from cohort.service.hosting.service_file import DATABASE_VARIABLE, load_service_file


@pytest.fixture
def deploy(repository: Path) -> Path:
    return repository / "deploy"


def test_the_container_file_copies_what_is_there_and_drops_root(repository: Path, deploy: Path) -> None:
    text = (deploy / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+)$", text, re.MULTILINE)
    sources = [name for line in copied for name in line.split()[:-1]]
    assert "src" in sources
    assert [name for name in sources if not (repository / name).exists()] == []
    instructions = re.findall(r"^([A-Z]+) ", text, re.MULTILINE)
    assert instructions[0] == "FROM"
    # nothing but the command after the user is dropped to
    assert "RUN" not in instructions[instructions.index("USER") :]
    assert "/health" in text
    assert not re.search(r"(?i)(password|secret|token)\s*=", text)


def test_the_compose_file_is_whole(repository: Path, deploy: Path) -> None:
    found = YAML(typ="safe").load((deploy / "compose.yaml").read_text())
    service, database = found["services"]["service"], found["services"]["database"]
    assert service["depends_on"]["database"]["condition"] == "service_healthy"
    assert "healthcheck" in database
    assert (deploy / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for volume in (*service["volumes"], *database["volumes"]):
        source = volume.partition(":")[0]
        assert (deploy / source).is_file() if source.startswith(".") else source in found["volumes"]
    # no password in the file, and no default for one
    assert "${POSTGRES_PASSWORD:?" in database["environment"]["POSTGRES_PASSWORD"]
    assert "${POSTGRES_PASSWORD:?" in service["environment"]["COHORT_DATABASE"]
    # no machine but this one reaches it without a proxy
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_service_file_that_it_mounts_is_read(deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = YAML(typ="safe").load((deploy / "compose.yaml").read_text())["services"]["service"]
    monkeypatch.setenv(DATABASE_VARIABLE, found["environment"][DATABASE_VARIABLE])
    file = load_service_file(deploy / "service.yaml")
    assert (file.folder, file.port) == ("/data/service", 8000)
    assert (file.database or "").startswith("postgresql://cohort:")
    # a name of its own: a container that is made again goes on with what it had
    assert file.name
    (given,) = found["command"]
    targets = [volume.split(":")[1] for volume in found["volumes"]]
    assert given in targets
    assert all(
        any(Path(place).is_relative_to(target) for target in targets) for place in (file.folder, file.blobs or "")
    )
    assert [port.split(":")[-1] for port in found["ports"]] == [str(file.port)]
    assert str(parsed([*command_of(deploy, "ENTRYPOINT"), *found["command"]])["file"]) == given


def command_of(deploy: Path, instruction: str) -> list[str]:
    """Return the words of an instruction that is written as JSON."""
    text = (deploy / "Dockerfile").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)
    words: list[str] = json.loads(line)
    return words


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the options that the command line reads from these words; nothing is run."""
    program, *rest = words
    assert program == "cohort"
    # of click, or of the copy of it that typer brings
    group: Any = typer.main.get_command(build_app())
    name, verb, rest = group.resolve_command(group.context_class(group), rest)
    found: dict[str, Any] = verb.make_context(name, rest).params
    return found


def test_the_container_starts_what_the_command_line_knows(deploy: Path) -> None:
    text = (deploy / "Dockerfile").read_text()
    options = parsed(command_of(deploy, "ENTRYPOINT") + command_of(deploy, "CMD"))
    (port,), (volume,) = (
        re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE),
        re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE),
    )
    assert (options["host"], options["port"]) == ("0.0.0.0", int(port))
    assert Path(options["folder"]).is_relative_to(volume)
    assert f":{port}/health" in command_of(deploy, "HEALTHCHECK")[-1]
    # its user may write there, and caches are there as well
    assert f"chown cohort {volume}" in text
    assert re.findall(r"(?:HF_HOME|COHORT_CACHE_DIR)=(\S+)", text) == [f"{volume}/huggingface", f"{volume}/cache"]


@pytest.mark.parametrize(("status", "is_well"), [(200, True), (503, False)])
def test_the_health_check_tells_a_server_that_is_well(deploy: Path, status: int, is_well: bool) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        python, option, code = command_of(deploy, "HEALTHCHECK")
        assert (python, option) == ("python", "-c")
        done = subprocess.run(
            [sys.executable, "-c", code.replace(":8000/", f":{server.server_port}/")], capture_output=True, timeout=60
        )
    assert (done.returncode == 0) is is_well


def test_what_the_package_is_built_from_is_in_the_container(repository: Path, deploy: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    text = (deploy / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for name in line.split()[:-1]]
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
        project["tool"]["hatch"]["version"]["path"],
    ]
    assert [name for name in needed if not any(Path(name).is_relative_to(source) for source in copied)] == []
    # and what pip installs
    (line,) = re.findall(r"^RUN (pip install .+)$", text, re.MULTILINE)
    words = shlex.split(line)
    assert words[words.index("-c") + 1] in copied
    extras = Requirement(f"cohort-lora{words[-1].removeprefix('.')}").extras
    assert extras <= project["project"]["optional-dependencies"].keys()
    assert "service" in extras
