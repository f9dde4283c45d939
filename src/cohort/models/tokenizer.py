"""Loads the tokenizer of a checkpoint, without asking transformers what its files already say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.models.remote_code import may_run_code
from cohort.models.source import find_model
from cohort.models.stated_settings import stated_tokenizer_class
from cohort.models.transformers_answers import answered

__all__ = ["load_tokenizer"]

# one of these holds the vocabulary; some models of Mistral have tekken.json alone
_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def load_tokenizer(name_or_path: str | Path) -> Any:
    """Return the transformers tokenizer of the model.

    Raises:
        InputError: there is none, or it does not load.
    """
    folder = find_model(name_or_path)
    # transformers tries every way to make a tokenizer of nothing, which takes long, and lists them
    if not any((folder / name).is_file() for name in _FILES) and not any(folder.glob("*.tiktoken")):
        raise _unusable(folder, found="no tokenizer's files")
    loaded: list[Any] = []
    runs_code = may_run_code(folder)

    def ask() -> str:
        # transformers takes seconds to import: only a load pays for it
        from transformers import AutoTokenizer

        loaded.append(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=runs_code))
        return type(loaded[0]).__name__

    try:
        kind = stated_tokenizer_class(folder) or answered("tokenizer class", folder, ask=ask)
        if not loaded:
            import transformers

            tokenizer_class = getattr(transformers, kind, None) or transformers.AutoTokenizer
            loaded.append(tokenizer_class.from_pretrained(folder, local_files_only=True, trust_remote_code=runs_code))
    except Exception as error:  # many types, by tokenizer class and version; each means that the files do not fit
        raise _unusable(folder, found=f"no tokenizer that loads ({' '.join(str(error).split())[:200]})") from error
    _take_end_from_model(loaded[0], folder)
    return loaded[0]


def _take_end_from_model(tokenizer: Any, folder: Path) -> None:
    """Let a tokenizer without an end-of-sequence token have the one that generation with the model ends with."""
    if tokenizer.eos_token_id is not None:
        return
    for name in ("generation_config.json", "config.json"):
        try:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
            found = settings.get("eos_token_id", settings.get("text_config", {}).get("eos_token_id"))
        except (OSError, ValueError, AttributeError):
            continue
        first = found[0] if isinstance(found, list) and found else found
        if isinstance(first, int) and 0 <= first < len(tokenizer):
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(first)
            return


def _unusable(folder: Path, *, found: str) -> InputError:
    return InputError(
        Problem(
            where=str(folder),
            found=found,
            allowed="tokenizer.json and tokenizer_config.json as transformers saves them",
            hint="Fetch the model's tokenizer files.",
        )
    )
