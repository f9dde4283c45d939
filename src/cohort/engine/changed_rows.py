"""Which rows are no longer those a run began with: training rows, validation rows, or how they are tokenised."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.core.errors import Problem
from cohort.data.report import SplitInput
from cohort.runs.facts import InputFacts
from cohort.tasks.task_file import TaskFile

__all__ = ["MEND_PLACE", "rewritten_note", "row_problems", "short"]

MEND_PLACE = (
    "Restore it as it was, say where it is now (cohort resume RUN_DIR --{key} PATH), "
    "or start a new run with `cohort tune`."
)
_MEND_LIBRARY = "Install the versions the run began with, or start a new run with `cohort tune`."
_WHEN = "as when the run began"
_SHORT = 12


def row_problems(before: InputFacts, now: InputFacts, *, task: TaskFile) -> list[Problem]:
    """Return a problem for each input whose change gives other rows, and for none beside it.

    Args:
        before: From the run record. One without ``train_input`` tells only that something changed, not what.
        now: From the preparation.
        task: Says where the rows are.
    """
    if _same_fingerprints(before, now):
        return []
    places = {"train": _place(task, "train"), "validation": _place(task, "validation")}
    is_share = isinstance(task.dataset.validation, int | float)
    if before.train_input is None:
        return [_problem_of_old_record(before, now, task=task, places=places, is_share=is_share)]
    problems = []
    if before.tokenizer_hash != now.tokenizer_hash:
        problems.append(_tokenizer_problem(before, now, task=task))
    pairs = _inputs(before, now)
    train_changed, validation_changed = (then.rows_hash != found.rows_hash for then, found in pairs.values())
    # a share is taken from the training rows: they are what the user changed
    changed = {"train": train_changed or (is_share and validation_changed), "validation": validation_changed}
    for split, (then, found) in pairs.items():
        if not changed[split] or (split == "validation" and is_share):
            continue
        if then.files_hash != found.files_hash:
            problems.append(_changed(places[split], split, then=then, now=found))
        elif not problems:
            problems.append(_tokenised_otherwise(places[split], split))
    return problems


def rewritten_note(before: InputFacts, now: InputFacts) -> str | None:
    """Return which files are written otherwise than when the run began, for rows that are the same; None for none."""
    names = [
        f"dataset.{split}"
        for split, (then, found) in _inputs(before, now).items()
        if then.files_hash != found.files_hash
    ]
    return f"{' and '.join(names)} changed since the run began; the rows it uses are the same" if names else None


def short(value: str | None) -> str:
    """Return the first digits of a hash."""
    return "nothing" if value is None else value[:_SHORT]


def _same_fingerprints(before: InputFacts, now: InputFacts) -> bool:
    then = (before.train_fingerprint, before.validation_fingerprint)
    return then == (now.train_fingerprint, now.validation_fingerprint)


def _place(task: TaskFile, split: str) -> str:
    value = task.model_dump(mode="json")["dataset"][split]
    return f"dataset.{split}: {', '.join(value) if isinstance(value, list) else value}"


def _inputs(before: InputFacts, now: InputFacts) -> dict[str, tuple[SplitInput, SplitInput]]:
    """Return what each split was read from, then and now, where both are on record."""
    pairs = {
        "train": (before.train_input, now.train_input),
        "validation": (before.validation_input, now.validation_input),
    }
    return {split: (then, found) for split, (then, found) in pairs.items() if then is not None and found is not None}


def _changed(place: str, split: str, *, then: SplitInput, now: SplitInput) -> Problem:
    name = "training" if split == "train" else "validation"
    return Problem(
        where=place,
        found=f"the {name} rows changed: {_in_words(now)}",
        allowed=f"{_in_words(then)}, {_WHEN}",
        hint=MEND_PLACE.format(key=f"dataset.{split}"),
    )


def _in_words(read: SplitInput) -> str:
    size = "" if read.num_bytes is None else f" in {read.num_bytes:,} bytes"
    return f"{read.num_rows_read:,} rows read{size} (SHA-256 {short(read.files_hash)})"


def _tokenizer_problem(before: InputFacts, now: InputFacts, *, task: TaskFile) -> Problem:
    return Problem(
        where=f"model_name_or_path: {task.model_name_or_path}",
        found=f"the tokenizer or its chat template changed (SHA-256 {short(now.tokenizer_hash)})",
        allowed=f"SHA-256 {short(before.tokenizer_hash)}, {_WHEN}",
        hint=MEND_PLACE.format(key="model_name_or_path"),
    )


def _tokenised_otherwise(place: str, split: str) -> Problem:
    name = "training" if split == "train" else "validation"
    return Problem(
        where=place,
        found=f"the {name} rows changed, though neither the file nor the tokenizer did: other versions read them",
        allowed=f"the tokens that Cohort, transformers and tokenizers made of them, {_WHEN}",
        hint=_MEND_LIBRARY,
    )


def _problem_of_old_record(
    before: InputFacts,
    now: InputFacts,
    *,
    task: TaskFile,
    places: Mapping[str, str],
    is_share: bool,
) -> Problem:
    """Return what can be said where files and tokenizer went into one hash."""
    if before.data_hash == now.data_hash:
        return Problem(
            where=f"model_name_or_path: {task.model_name_or_path}",
            found="other tokens of the same files: the tokenizer, its chat template or a library changed",
            allowed=f"the tokenizer and the versions of transformers and tokenizers, {_WHEN}",
            hint=MEND_PLACE.format(key="model_name_or_path"),
        )
    name = "the training rows" if is_share else "the training rows, the validation rows or both"
    return Problem(
        where=places["train"] if is_share else f"{places['train']}; {places['validation']}",
        found=f"{name} changed: {_used(now)}",
        allowed=f"{_used(before)}, {_WHEN}",
        hint=MEND_PLACE.format(key="dataset.train"),
    )


def _used(inputs: InputFacts) -> str:
    read = (inputs.data_counts or {}).get("rows_read")
    total = "" if read is None else f"{read} rows read, "
    return f"{total}{inputs.num_train_rows} to train on (SHA-256 {short(inputs.data_hash)})"
