"""Rows that a run is measured on afterwards and that it has read before: what is measured there is too good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cohort.adapter_files.base_model import RunBase
from cohort.core.errors import InputError
from cohort.data.loading import load_dataset
from cohort.data.tokenised import TokenisedRows

__all__ = ["seen_note"]


def seen_note(held: TokenisedRows, *, group_size: int, base: RunBase, tokenizer: Any) -> str | None:
    """Return how many of ``held`` the run trained on or chose its best trial by; None where it is none.

    None also where that cannot be known: the run's files are gone from this machine, or have changed since.

    Args:
        group_size: Rows of one question: 2 for pairs of answers.
    """
    data = base.task.dataset
    files = [*data.train, *(data.validation if isinstance(data.validation, tuple) else ())]
    # nothing is fetched for a note
    if not all(Path(file).exists() for file in files):
        return None
    try:
        # from the cache of tokenised rows, where the run has put them
        loaded = load_dataset(
            base.task.dataset_settings(),
            tokenizer=tokenizer,
            evaluation_max_examples=base.task.evaluation.max_examples,
        )
    except (InputError, OSError):
        return None
    if loaded.report.data_hash != base.facts.inputs.data_hash:
        return None
    own = _groups(held, size=group_size)
    trained, validated = (set(_groups(rows, size=group_size)) for rows in (loaded.train, loaded.all_validation))
    num_trained = sum(group in trained for group in own)
    num_validated = sum(group in validated and group not in trained for group in own)
    parts = [f"{num_trained} of {len(own)} rows were trained on"] if num_trained else []
    parts += [f"{num_validated} of {len(own)} rows chose the best trial"] if num_validated else []
    if not parts:
        return None
    return f"{' and '.join(parts)}, so what is measured here is too good; measure on rows that the run has not read"


def _groups(rows: TokenisedRows, *, size: int) -> list[bytes]:
    """Return what makes each row, or pair, the same as another: its tokens, and which of them are trained."""
    samples = [rows.sample(index) for index in range(len(rows))]
    contents = [sample.tokens.tobytes() + sample.trained.tobytes() for sample in samples]
    return [b"".join(contents[index : index + size]) for index in range(0, len(contents), size)]
