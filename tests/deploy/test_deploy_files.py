"""The container and compose files, as far as they can be checked without docker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cohort.service.hosting.service_file import load_service_file


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


def test_the_service_file_that_it_mounts_is_read(deploy: Path) -> None:
    file = load_service_file(deploy / "service.yaml")
    assert (file.folder, file.port) == ("/data/service", 8000)
