"""Local paths of a task: made absolute, or noted as missing. Anything else may be a hub id."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cohort.core.errors import Problem
from cohort.core.input_values.hub_ids import is_model_id
from cohort.core.source_location import KeyPath
from cohort.core.unusual_path import unusual_path
from cohort.data.chat_templates import is_template_text, known_templates
from cohort.data.files.sources import SPLITS, HubSource, resolve_sources
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.setting_refusals import quoted_share
from cohort.tasks.overrides import Override
from cohort.tasks.yaml_lines import TaskOrigin

__all__ = ["PATH_KEYS", "from_working_directory", "locate_adapters", "locate_data", "locate_model"]


_ADAPTER_KEYS = (("lora", "adapter_name_or_path"), ("objective", "reference_adapter"))
_HUB_PAGE = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([\w.-]+(?:/[\w.-]+)?)")


def locate_model(data: dict[str, Any], base: Path, origin: TaskOrigin) -> list[Problem]:
    """Make a local model's path absolute; note a name that is neither a directory nor a hub id."""
    text = data.get("model_name_or_path")
    # validation reports a wrong type
    if not isinstance(text, str) or not text.strip():
        return []
    path = base / Path(text).expanduser()
    where = origin.where("model_name_or_path")
    allowed = "a directory or a hub id"
    unusual = unusual_path(path)
    if unusual is not None and not (unusual.is_below_file and is_model_id(text)):
        return [Problem(where=where, found=f"{text!r:.80}, {unusual.found}", allowed=allowed, hint=unusual.hint)]
    # a directory wins over a hub id that is written alike, as in transformers
    if path.is_dir():
        data["model_name_or_path"] = str(path.resolve())
        return []
    if path.exists():
        hint = "Name the directory that holds config.json and the weights."
        return [Problem(where=where, found=f"the file {text!r}", allowed=allowed, hint=hint)]
    if is_model_id(text):
        return []
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, siblings, n=1)
    if (page := _HUB_PAGE.match(text)) is not None:
        hint = f"Write {page[1]}, the model's id."
        return [Problem(where=where, found=f"{text!r}, an address", allowed=allowed, hint=hint)]
    hint = (
        f"Did you mean {near[0]!r}?"
        if near
        else "Check the path; relative paths start at the task file, in Python at the working directory."
    )
    found = f"{text!r}, which does not exist"
    return [Problem(where=where, found=found, allowed="a local directory or a hub id", hint=hint)]


def locate_adapters(data: dict[str, Any], base: Path, origin: TaskOrigin) -> list[Problem]:
    """Make the paths of :data:`_ADAPTER_KEYS` absolute; note one that is no directory of an adapter."""
    return [problem for key in _ADAPTER_KEYS for problem in _locate_adapter(key, data, base, origin)]


def _locate_adapter(key: tuple[str, str], data: dict[str, Any], base: Path, origin: TaskOrigin) -> list[Problem]:
    section, name = data.get(key[0]), key[1]
    text = section.get(name) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(text, str):
        return []
    path = base / Path(text).expanduser()
    unusual = unusual_path(path)
    if unusual is None and text.strip() and (path / "adapter_config.json").is_file():
        data[key[0]] = {**section, name: str(path.resolve())}
        return []
    found = f"{text!r:.80}, {'which does not exist' if unusual is None else unusual.found}"
    if unusual is None and path.is_dir():
        found = f"{text!r}, a directory without adapter_config.json"
    hint = "Name the directory of an adapter, such as best/ of a run; relative paths start at the task file."
    where = origin.where(key)
    # said once: without the key nothing reads it
    data[key[0]] = {**section, name: None}
    return [Problem(where=where, found=found, allowed="the directory of a LoRA adapter", hint=hint)]


def locate_data(data: dict[str, Any], base: Path, origin: TaskOrigin, *, given: Collection[str] = ()) -> list[Problem]:
    """Make local data paths absolute; note those that do not exist. The splits of ``given`` name no file yet."""
    section = data.get("dataset")
    if not isinstance(section, Mapping):
        return []
    section = data["dataset"] = dict(section)
    problems = _read_chat_template(section, base, origin)
    for split in (split for split in SPLITS if split not in given):
        value = section.get(split)
        # a share in quotes is no path; validation says how to write it
        if split == "validation" and quoted_share(value) is not None:
            continue
        entries: list[Any] = value if isinstance(value, list) else [value]
        if not entries or not all(isinstance(entry, str) and entry.strip() and "\0" not in entry for entry in entries):
            continue
        log = ProblemLog()
        absolute = []
        for entry in entries:
            where = origin.where(("dataset", split))
            found = resolve_sources(entry, split=split, base_directory=base, where=where, log=log)
            is_hub = any(isinstance(source, HubSource) for source in found)
            # the run directory keeps its own copy of the task, so a path must not depend on where the file lies
            path = base / Path(entry).expanduser()
            # what cannot be reached was noted above, and cannot be resolved either
            absolute.append(entry if is_hub or unusual_path(path) is not None else str(path.resolve()))
        section[split] = absolute if isinstance(value, list) else absolute[0]
        problems += log.of(ProblemKind.INPUT)
    return problems


def _read_chat_template(section: dict[str, Any], base: Path, origin: TaskOrigin) -> list[Problem]:
    """Put a template's text in the place of its file, so that the run does not depend on where the file lies."""
    written = section.get("chat_template")
    if not isinstance(written, str) or written in known_templates() or is_template_text(written):
        return []
    path = base / Path(written).expanduser()
    if (unusual := unusual_path(path)) is not None:
        where, found = origin.where("dataset.chat_template"), f"{written!r:.80}, {unusual.found}"
        allowed = f"a file, or one of {', '.join(known_templates())}"
        return [Problem(where=where, found=found, allowed=allowed, hint=unusual.hint)]
    if not path.is_file():
        # validation says that it is neither a name nor a file
        return []
    try:
        section["chat_template"] = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where, found = origin.where("dataset.chat_template"), f"a file that cannot be read ({error})"
        hint = "Check its permissions, and save it as UTF-8."
        return [Problem(where=where, found=found, allowed="a text file with a Jinja template", hint=hint)]
    return []


PATH_KEYS: tuple[KeyPath, ...] = (
    ("model_name_or_path",),
    *_ADAPTER_KEYS,
    *(("dataset", split) for split in SPLITS),
)
"""Keys that say where something is."""


def from_working_directory(override: Override) -> Override:
    """Make paths typed on the command line absolute if they exist relative to the working directory."""

    # a shell completes paths from the working directory; a path that is not there may be meant from the task file
    def absolute(entry: Any) -> Any:
        # a file with its weight
        if isinstance(entry, Mapping) and "path" in entry:
            return {**entry, "path": absolute(entry["path"])}
        if not isinstance(entry, str) or unusual_path(path := Path(entry).expanduser()) or not path.exists():
            return entry
        return str(path.resolve())

    if override.path not in PATH_KEYS:
        return override
    value = override.value
    return replace(override, value=[absolute(entry) for entry in value] if isinstance(value, list) else absolute(value))
