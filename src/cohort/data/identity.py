"""What makes two tokenised datasets the same: digests of files, settings, tokenizer, code and libraries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cohort.data.files.reading import InputSource
from cohort.data.settings import DatasetSettings, RowReading
from cohort.models.known_tokenizer import answer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["cache_key", "digest", "identity_of", "tokenizer_hash"]

# part of every cache key: raise it with any change to parsing, rendering, masking or splitting
_CODE_VERSION = 4


def cache_key(identity: str, *, names: object) -> str:
    """Return what a dataset is cached under; ``names`` are those by which its files are named in errors."""
    libraries = {name: version(name) for name in ("transformers", "tokenizers")}
    return digest({"identity": identity, "names": names, "code": _CODE_VERSION, "libraries": libraries})


def identity_of(
    settings: DatasetSettings,
    sources: Sequence[InputSource],
    *,
    tokenizer: PreTrainedTokenizerBase,
    evaluation_max_examples: int | None,
) -> str:
    """Return a digest of everything that shapes the rows, wherever they lie, the code and its libraries apart."""
    share = settings.validation if isinstance(settings.validation, int | float) else None
    # which files a weight is for
    entries = [entry.number for entry in sources if entry.split == "train"]
    return digest(
        {
            "files": [(entry.split, entry.digest) for entry in sources],
            **_tokenizer_parts(tokenizer),
            **settings.shaping(),
            "columns": dict(settings.columns),
            "seed": settings.seed,
            "share": share,
            "evaluation_max_examples": evaluation_max_examples,
            **({} if settings.weights is None else {"entries": entries}),
            **({} if settings.reads is RowReading.ANSWERS else {"reads": settings.reads.value}),
        }
    )


def _tokenizer_parts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    parts: dict[str, Any] = answer_of(tokenizer, "identity", _parts_of)
    return parts


def _parts_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    # a call without padding and truncation clears both, which a tokenizer file or an earlier call may have set
    tokenizer("", verbose=False)
    return {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "chat_template": tokenizer.chat_template,
    }


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    return digest(_tokenizer_parts(tokenizer))


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
