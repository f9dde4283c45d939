"""Finds a model's files: a local directory, or a hub id whose files are fetched once into the hub's own cache."""

from __future__ import annotations

import contextlib
import functools
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.hub_ids import is_model_id, split_revision
from cohort.core.source_location import Place
from cohort.core.unusual_path import unusual_path
from cohort.models.remote_code import may_run_code_of

__all__ = ["find_local_model", "find_model", "find_model_here", "refuse_missing_model"]

_NEEDED_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken")
# the same weights once more, as the model's makers or another program want them: `original/`, `metal/`, `onnx/`
_COPIES = ("*/*.safetensors", "*/*.json", "*/*.model", "*/*.txt", "consolidated*.safetensors")
# what PEFT calls it
_ADAPTER_CONFIG = "adapter_config.json"
# to ask the hub whether a model exists, before other errors are shown
_ASK_SECONDS = 5.0


def find_local_model(name_or_path: str | Path) -> Path | None:
    """Return the directory ``name_or_path`` where it is one; nothing is fetched."""
    path = Path(name_or_path).expanduser()
    return path if unusual_path(path) is None and path.is_dir() else None


def find_model_here(name_or_path: str | Path) -> Path | None:
    """Return the directory that holds the model, also where that is the hub's cache; None if it would be fetched.

    The hub is not asked: :func:`find_model` may find a later revision.
    """
    folder, text = find_local_model(name_or_path), str(name_or_path)
    if folder is not None or not is_model_id(text):
        return folder
    # many errors say that something is missing
    with contextlib.suppress(Exception):
        return _snapshot(text, is_fetched=False)
    return None


def find_model(name_or_path: str | Path) -> Path:
    """Return the directory that holds the model ``name_or_path`` names.

    A directory that exists wins; anything else that looks like a hub id, or ``OWNER/NAME@REVISION``, is downloaded
    (configuration, tokenizer and safetensors files only), or taken from the hub's cache when it is complete there. One
    process asks once: weights and tokenizer are of one revision, though a branch may go on meanwhile.

    Raises:
        InputError: no such directory, no such hub model or revision, one that needs a licence or a login, the hub
            cannot be reached, or it is an adapter.
    """
    folder = _find_files(name_or_path)
    if (folder / _ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        raise _is_adapter(folder, text=str(name_or_path))
    return folder


def refuse_missing_model(name_or_path: str | Path) -> None:
    """Refuse a model that does not exist, as far as that is known without a download.

    Raises:
        InputError: there is no such directory, and surely no such hub model.
    """
    if find_local_model(name_or_path) is None and not _may_be_on_hub(str(name_or_path)):
        _find_files(name_or_path)


def _may_be_on_hub(text: str) -> bool:
    """Return whether ``text`` may be a model of the hub; False as well where that is looked up at once."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    # offline, the hub's cache is all there is
    if not is_model_id(text) or constants.HF_HUB_OFFLINE:
        return False
    name, revision = split_revision(text)
    try:
        HfApi().model_info(name, revision=revision, timeout=_ASK_SECONDS)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return False
    except Exception:
        # a hub that does not answer says nothing about the model
        return True
    return True


def _find_files(name_or_path: str | Path) -> Path:
    folder = find_local_model(name_or_path)
    if folder is not None:
        return folder
    text = str(name_or_path)
    unusual = unusual_path(Path(text).expanduser())
    if unusual is not None and not (unusual.is_below_file and is_model_id(text)):
        raise _problem(text, found=unusual.found, hint=unusual.hint)
    if unusual is None and Path(text).expanduser().exists():
        raise _problem(text, found="a file", hint="Give the directory that holds config.json and *.safetensors.")
    if not is_model_id(text):
        hint = _or_path(text, "Correct the path, or give a hub id such as owner/model.", names_parent=False)
        raise _problem(text, found="no such directory", hint=hint)
    return _fetch(text)


@functools.cache
def _fetch(hub_id: str) -> Path:
    # imported here so that local models need no hub client
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        IncompleteSnapshotError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, revision = split_revision(hub_id)
    try:
        return _snapshot(hub_id, is_fetched=True)
    except GatedRepoError as error:
        found = "a gated hub model, whose licence this login has not accepted"
        hint = f"Accept it on https://huggingface.co/{name}, and log in with `hf auth login` or set HF_TOKEN."
        cause: Exception = error
    except RepositoryNotFoundError as error:
        found, cause = "no such directory, and no such model on the hub", error
        hint = _or_path(name, "Correct the name, or log in with `hf auth login` if the model is private.")
    except RevisionNotFoundError as error:
        found, cause = f"no revision {revision!r} of {name} on the hub", error
        hint = "Name a branch, a tag or a commit that the model's page lists, or leave @ and what follows out."
    except IncompleteSnapshotError as error:
        found, cause = "a part of the model in the hub's cache, and the hub cannot be asked for the rest", error
        hint = f"Fetch it where there is a network: `hf download {_as_options(name, revision)}`."
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        found = f"no such directory, and the hub cannot be reached ({type(error).__name__})"
        hint, cause = "Connect to the network, or give the path of a downloaded model.", error
        if constants.HF_HUB_OFFLINE:
            found = "no such directory, and nothing of that name in the hub's cache; the hub is not asked"
            hint = "Unset HF_HUB_OFFLINE, or give the path of a downloaded model."
        hint = _or_path(hub_id, hint)
    except ValueError as error:
        found, hint, cause = str(error), "Correct the name.", error
    raise _problem(hub_id, found=found, hint=hint) from cause


def _snapshot(hub_id: str, *, is_fetched: bool) -> Path:
    from huggingface_hub import snapshot_download

    name, revision = split_revision(hub_id)
    wanted = [*_NEEDED_FILES, *(("*.py",) if may_run_code_of(hub_id) else ())]
    folder = snapshot_download(
        name,
        revision=revision,
        allow_patterns=wanted,
        ignore_patterns=list(_COPIES),
        local_files_only=not is_fetched,
    )
    return Path(folder)


def _as_options(name: str, revision: str | None) -> str:
    return name if revision is None else f"{name} --revision {revision}"


def _or_path(text: str, hint: str, *, names_parent: bool = True) -> str:
    """Return ``hint``, or what helps where ``text`` is a misspelt path; ``names_parent`` if it may be a hub id."""
    path = Path(text).expanduser()
    try:
        # a bare name may be a model of the hub: here it means only a folder that holds a model
        wanted = "" if path.parent.name else "config.json"
        folders = [entry.name for entry in path.parent.iterdir() if entry.is_dir() and (entry / wanted).exists()]
    except OSError:
        # no such folder here, or not ours to read
        return hint
    near = get_close_matches(path.name, folders, n=1)
    if near:
        return f"Did you mean {path.parent / near[0]}?"
    return f"{hint} {path.parent} is a folder here." if names_parent and path.parent.name else hint


def _is_adapter(folder: Path, *, text: str) -> InputError:
    """Return the error for an adapter that is named where a base model belongs: both are folders of safetensors."""
    try:
        config: Any = json.loads((folder / _ADAPTER_CONFIG).read_text(encoding="utf-8"))
        base = config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    named = f"the base model {base!r}" if base else "a base model that its adapter_config.json does not name"
    name = repr(base) if base else "its base model"
    return _problem(
        text,
        found=f"an adapter, not a model; it was trained on {named}",
        hint=f"Give {name}, or merge the adapter into it (`cohort export RUN_DIR --to merged`) and give the merged "
        "directory.",
    )


def _problem(text: str, *, found: str, hint: str) -> InputError:
    return InputError(
        Problem(
            where=Place(key=("model_name_or_path",), text=text),
            found=found,
            allowed="a local model directory or a hub id, OWNER/NAME or OWNER/NAME@REVISION",
            hint=hint,
        )
    )
