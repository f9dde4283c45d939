"""A tokenizer that is loaded when more is asked of it than an earlier load has written down.

Rows that are tokenised already, and adapters that get the tokenizer's files, need no tokenizer: only what it said when
it was loaded last. To load one means importing transformers, which takes 0.7 s of a quick host and 3 s of a slow one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import storage_full_named, write_bytes, write_text
from cohort.models.remote_code import may_run_code
from cohort.models.source import find_model
from cohort.models.tokenizer import load_tokenizer
from cohort.version import __version__

__all__ = ["KnownTokenizer", "answer_of", "can_become_known", "known_tokenizer", "tokenizer_files"]

_FOLDER = "tokenizers"
_FACTS = "facts.json"
_FILES = "files"
# part of every key: raise it with any change to what is written down, or to what answers the questions
# (data/identity, data/chat) and prepares a tokenizer (models/tokenizer, data/chat)
_VERSION = 1
# plain values that a tokenizer has once it is loaded
_ATTRIBUTES = (
    "name_or_path",
    "is_fast",
    "bos_token",
    "bos_token_id",
    "eos_token",
    "eos_token_id",
    "unk_token",
    "unk_token_id",
    "chat_template",
)
# of the files that a tokenizer is made of
_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
# a folder with larger ones of these holds other things as well
_MOST_BYTES = 256 << 20
# beyond them the one that was used longest ago goes
_MOST_KEPT = 16


class KnownTokenizer:
    """Stands for a tokenizer of transformers: what is known is answered, and for anything else it is loaded."""

    def __init__(self, load: Callable[[], Any], *, kept: Path | None, is_needed: bool) -> None:
        """Read what is known, or load.

        Args:
            load: Returns the tokenizer.
            kept: The folder for what is known; None where nothing may be.
            is_needed: Whether it will be loaded anyhow.

        Raises:
            InputError: it had to be loaded, and does not load.
        """
        self._load, self._kept, self._lock = load, kept, threading.RLock()
        self._loaded: Any = None
        self._files: Mapping[Path, bytes] | None = None
        self._answers: dict[str, Any] = {}
        self._has_learned = False
        facts = None if kept is None or is_needed else _read(kept)
        if facts is None:
            self._attributes = {name: getattr(self.loaded(), name, None) for name in _ATTRIBUTES}
        else:
            self._attributes, self._answers, self._files = facts

    def loaded(self) -> Any:
        """Return the tokenizer itself.

        Raises:
            InputError: it does not load.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def answer(self, question: str, ask: Callable[[Any], Any]) -> Any:
        """Return what ``ask`` returns for the tokenizer, or returned when it was asked before: something for JSON."""
        if question not in self._answers:
            self._answers[question] = ask(self.loaded())
            self._has_learned = True
        return self._answers[question]

    def files(self) -> Mapping[Path, bytes]:
        """Return the files that it is saved as; what is known by then is kept with them."""
        if self._files is None:
            self._files = _saved_files(self.loaded())
            self._has_learned = True
        if self._kept is not None and self._has_learned:
            # a cache that cannot be written only costs time
            with contextlib.suppress(Exception):
                _write(self._kept, self._attributes, self._answers, self._files)
            self._has_learned = False
        return self._files

    def __getattr__(self, name: str) -> Any:
        # of an object that was not initialised, as copies are made of
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _ATTRIBUTES:
            return self._attributes[name]
        return getattr(self.loaded(), name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.loaded()(*arguments, **options)

    def __len__(self) -> int:
        return len(self.loaded())


def known_tokenizer(
    name_or_path: str | Path, *, prepare: Callable[[Any], None], how: object, is_needed: bool = False
) -> KnownTokenizer:
    """Return the tokenizer of a model, loaded only if it is not known well enough.

    Args:
        prepare: Changes it after each load, such as its chat template.
        how: All that ``prepare`` follows, as JSON can hold it.
        is_needed: Whether it will be loaded anyhow.

    Raises:
        InputError: there is none, or it does not load.
    """
    folder = find_model(name_or_path)

    def load() -> Any:
        tokenizer = load_tokenizer(folder)
        prepare(tokenizer)
        return tokenizer

    # code of the model's own may read anything
    kept = None if may_run_code(folder) else _place(folder, how)
    return KnownTokenizer(load, kept=kept, is_needed=is_needed)


def can_become_known(folder: Path, *, how: object) -> bool:
    """Return whether the tokenizer in ``folder`` is not known yet, and may be kept; ``how``: as it will be loaded."""
    if may_run_code(folder):
        return False
    kept = _place(folder, how)
    return kept is not None and not (kept / _FACTS).is_file()


def answer_of(tokenizer: Any, question: str, ask: Callable[[Any], Any]) -> Any:
    """Return what ``ask`` returns for a tokenizer, without asking where that is known."""
    return tokenizer.answer(question, ask) if isinstance(tokenizer, KnownTokenizer) else ask(tokenizer)


def tokenizer_files(tokenizer: Any) -> Mapping[Path, bytes]:
    """Return the files of a tokenizer by relative path; made once, they serve all adapters of a run."""
    return tokenizer.files() if isinstance(tokenizer, KnownTokenizer) else _saved_files(tokenizer)


def _saved_files(tokenizer: Any) -> Mapping[Path, bytes]:
    with TemporaryDirectory(prefix="cohort-tokenizer-") as saved, storage_full_named(saved):
        tokenizer.save_pretrained(saved)
        paths = sorted(path for path in Path(saved).rglob("*") if path.is_file())
        return {path.relative_to(saved): path.read_bytes() for path in paths}


def _place(folder: Path, how: object) -> Path | None:
    """Return where a tokenizer is kept: by its files, where they lie, and the libraries that load it."""
    libraries = [__version__, version("transformers"), version("tokenizers")]
    digest = hashlib.sha256(json.dumps([_VERSION, *libraries, str(folder.absolute()), how], default=repr).encode())
    try:
        for path in sorted((*folder.iterdir(), *folder.glob("additional_chat_templates/*"))):
            if path.suffix in _SUFFIXES and path.is_file():
                if path.stat().st_size > _MOST_BYTES:
                    return None
                digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return None
    return default_cache_directory() / _FOLDER / digest.hexdigest()[:32]


def _read(kept: Path) -> tuple[dict[str, Any], dict[str, Any], dict[Path, bytes]] | None:
    """Return attributes, answers and files; None where there are none, or damaged ones."""
    try:
        facts = json.loads((kept / _FACTS).read_text(encoding="utf-8"))
        files = {Path(name): (kept / _FILES / name).read_bytes() for name in facts["files"]}
        if {str(path): _digest(content) for path, content in files.items()} != facts["files"]:
            return None
        attributes = {name: facts["attributes"][name] for name in _ATTRIBUTES}
        answers = dict(facts["answers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(kept)
    return attributes, answers, files


def _write(kept: Path, attributes: Mapping[str, Any], answers: Mapping[str, Any], files: Mapping[Path, bytes]) -> None:
    for path, content in files.items():
        write_bytes(kept / _FILES / path, content, is_flushed=False)
    digests = {str(path): _digest(content) for path, content in files.items()}
    facts = {"attributes": attributes, "answers": answers, "files": digests}
    # last: without it there is nothing
    write_text(kept / _FACTS, json.dumps(facts) + "\n", is_flushed=False)
    others = sorted((path for path in kept.parent.iterdir() if path.is_dir()), key=_modified, reverse=True)
    for old in others[_MOST_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _modified(path: Path) -> float:
    # another process may remove it at the same time
    return path.stat().st_mtime if path.exists() else 0.0
