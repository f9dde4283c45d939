"""Checkpoints whose model is Python code of their own: run only where the machine's user names them.

A task file, an archive or a client of a server cannot ask for it: all of them may come from somebody else. The variable
is inherited by the processes of a run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.core.input_values.hub_ids import is_hub_id, split_revision

__all__ = ["TRUST_VARIABLE", "code_digest", "code_files", "may_run_code", "may_run_code_of"]

TRUST_VARIABLE = "COHORT_TRUST_REMOTE_CODE"


def code_files(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the Python files that the content of a ``config.json`` says its model is made of."""
    code = raw.get("auto_map") or {}
    if not isinstance(code, dict) or not any(key.startswith("AutoModel") for key in code):
        return ()
    return tuple(sorted({str(value).split("--")[-1].split(".")[0] + ".py" for value in code.values()}))


def may_run_code(folder: Path) -> bool:
    """Return whether :data:`TRUST_VARIABLE` names the checkpoint in ``folder``, by its path or its hub id."""
    return any(_is_in(folder, name) for name in _trusted())


def may_run_code_of(hub_id: str) -> bool:
    """Return whether :data:`TRUST_VARIABLE` names a model of the hub, with this revision or without one."""
    return hub_id in _trusted() or split_revision(hub_id)[0] in _trusted()


def code_digest(folder: Path) -> str:
    """Return what tells two versions of a checkpoint's code apart."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _trusted() -> tuple[str, ...]:
    return tuple(name.strip() for name in os.environ.get(TRUST_VARIABLE, "").split(",") if name.strip())


def _is_in(folder: Path, name: str) -> bool:
    path = Path(name).expanduser()
    if path.is_dir() and path.resolve() == folder.resolve():
        return True
    hub_id = split_revision(name)[0]
    # the hub's cache: models--ORGANISATION--NAME/snapshots/HASH
    return is_hub_id(hub_id) and f"models--{hub_id.replace('/', '--')}" in folder.parts
