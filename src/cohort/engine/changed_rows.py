"""Which rows are no longer those a run began with: training rows, validation rows, or how they are tokenised."""

from __future__ import annotations

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.data.split_input import SplitInput
from cohort.runs.fact_groups import InputFacts
from cohort.tasks.task_file import TaskFile

__all__ = ["RESTORE_OR_POINT_TO", "rewritten_note", "row_problems", "short"]

RESTORE_OR_POINT_TO = (
    "Restore it as it was, give its new path (cohort resume RUN_DIR --{key} PATH), "
    "or start a new run with `cohort tune`."
)
_RESTORE_LIBRARY = "Install the versions the run began with, or start a new run with `cohort tune`."
_WHEN = "as when the run began"
_NAMES = {"train": "training", "validation": "validation", "test": "test"}


def row_problems(before: InputFacts, now: InputFacts, *, task: TaskFile) -> list[Problem]:
    """Return a problem for each input whose change gives other rows.

    Args:
        before: From the run record.
        now: From the preparation.
        task: Says where the rows are.
    """
    then = (before.train_fingerprint, before.validation_fingerprint)
    compared = before.all_validation_input, now.all_validation_input
    same_compared = None in compared or compared[0] == compared[1]
    same_compared &= before.test_input == now.test_input
    if then == (now.train_fingerprint, now.validation_fingerprint) and same_compared:
        return []
    problems = []
    if before.tokenizer_hash != now.tokenizer_hash:
        problems.append(
            Problem(
                where=_model(task),
                found=f"the tokenizer or its chat template changed (SHA-256 {short(now.tokenizer_hash)})",
                allowed=f"SHA-256 {short(before.tokenizer_hash)}, {_WHEN}",
                hint=RESTORE_OR_POINT_TO.format(key="model_name_or_path"),
            )
        )
    is_share = isinstance(task.dataset.validation, int | float)
    pairs = _inputs(before, now)
    other = {split: then.rows_hash != found.rows_hash for split, (then, found) in pairs.items()}
    # a share is taken from the training rows: they are what the user changed
    changed = {
        "train": other["train"] or (is_share and other["validation"]),
        "validation": other["validation"] and not is_share,
        "test": other.get("test", False),
    }
    for split, (first, found) in pairs.items():
        # the same file gives other rows if the tokenizer changed, which is a problem of its own
        if changed[split] and (first.files_hash != found.files_hash or not problems):
            problems.append(_changed(task, split, then=first, now=found))
    return problems


def rewritten_note(before: InputFacts, now: InputFacts) -> str | None:
    """Return which files are no longer byte for byte the same although their rows are; None if all are."""
    names = [f"dataset.{split}" for split, (a, b) in _inputs(before, now).items() if a.files_hash != b.files_hash]
    return f"{' and '.join(names)} changed since the run began; the rows it uses are the same" if names else None


def short(value: str | None) -> str:
    """Return the first digits of a hash."""
    return "nothing" if value is None else value[:12]


def _changed(task: TaskFile, split: str, *, then: SplitInput, now: SplitInput) -> Problem:
    name = _NAMES[split]
    if then.files_hash != now.files_hash:
        return Problem(
            where=_rows(task, split),
            found=f"the {name} rows changed: {_in_words(now)}",
            allowed=f"{_in_words(then)}, {_WHEN}",
            hint=RESTORE_OR_POINT_TO.format(key=f"dataset.{split}"),
        )
    return Problem(
        where=_rows(task, split),
        found=f"the {name} rows changed, although neither the file nor the tokenizer did: library versions differ",
        allowed=f"the tokens that Cohort, transformers and tokenizers made of them, {_WHEN}",
        hint=_RESTORE_LIBRARY,
    )


def _inputs(before: InputFacts, now: InputFacts) -> dict[str, tuple[SplitInput, SplitInput]]:
    """Return what each split was read from, then and now, if both are on record."""
    # all rows where the record has them: those that evaluations choose from are among them
    is_all = before.all_validation_input is not None and now.all_validation_input is not None
    pairs = {
        "train": (before.train_input, now.train_input),
        "validation": (before.all_validation_input, now.all_validation_input)
        if is_all
        else (before.validation_input, now.validation_input),
        "test": (before.test_input, now.test_input),
    }
    return {split: (then, found) for split, (then, found) in pairs.items() if then is not None and found is not None}


def _rows(task: TaskFile, split: str) -> Place:
    value = task.model_dump(mode="json")["dataset"][split]
    return Place(key=("dataset", split), text=", ".join(value) if isinstance(value, list) else str(value))


def _model(task: TaskFile) -> Place:
    return Place(key=("model_name_or_path",), text=task.model_name_or_path)


def _in_words(read: SplitInput) -> str:
    size = "" if read.num_bytes is None else f" in {read.num_bytes:,} bytes"
    return f"{read.num_rows_read:,} rows read{size} (SHA-256 {short(read.files_hash)})"
