"""What transformers said about a checkpoint, kept on disk: asking it again means importing half of torch first.

``AutoConfig`` and ``AutoTokenizer`` import every model's module, the compiler and the distributed package: 5 to 9 s on
a slow host before a task begins. What they answer depends on the files and the version alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text

__all__ = ["answered"]

_FOLDER = "transformers"
# whatever decides an answer: another tokenizer class is chosen for another model
_FILES = ("config.json", "tokenizer_config.json")


def answered(question: str, folder: Path, *, ask: Callable[[], Any]) -> Any:
    """Return what ``ask`` returned for the checkpoint in ``folder`` the first time.

    Args:
        question: Tells several questions about one checkpoint apart.
        ask: Returns something that JSON can hold; what it raises is raised, and nothing is kept.
    """
    digest = hashlib.sha256(json.dumps([question, version("transformers")]).encode())
    for name in _FILES:
        path = folder / name
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    kept = default_cache_directory() / _FOLDER / f"{digest.hexdigest()[:32]}.json"
    try:
        return json.loads(kept.read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        # none yet, or damaged: ask
        pass
    answer = ask()
    # a cache that cannot be written only costs time
    with contextlib.suppress(Exception):
        write_text(kept, json.dumps({"question": question, "answer": answer}) + "\n")
    return answer
