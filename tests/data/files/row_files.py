"""Files of rows as tests write and read them."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.data.files.rows import ReadSource, read_source
from cohort.data.files.sources import SourceFile
from cohort.data.problems import ProblemKind, ProblemLog

__all__ = ["read", "written"]


def read(path: Path) -> tuple[ReadSource, list[Problem]]:
    log = ProblemLog()
    result = read_source(
        SourceFile(path=path, shown=path.name), split="train", where=Place(key=("dataset", "train")), log=log
    )
    return result, log.of(*ProblemKind)


def written(tmp_path: Path, name: str, content: bytes | str) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
