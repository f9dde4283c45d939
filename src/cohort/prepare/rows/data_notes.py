"""Notes about the rows for the run record and its report: one for each kind of problem, with the first places."""

from __future__ import annotations

from cohort.core.units import counted
from cohort.data.problems import ProblemKind
from cohort.data.report import DataReport
from cohort.runs.records import DataProblem

__all__ = ["data_counts", "data_problems", "split_notes"]

_PLACES_SHOWN = 5

# kind: what was found, what is expected, what to do
_TEXTS = {
    ProblemKind.UNREADABLE: ("could not be read; skipped", "one JSON object a line", "Fix or remove them."),
    ProblemKind.MALFORMED: ("malformed; skipped", "the keys and types of the format", "Fix or remove them."),
    ProblemKind.TEMPLATE: ("refused by the chat template; skipped", "roles the template knows", "Fix the messages."),
    ProblemKind.TOO_LONG: ("too long; dropped", "at most max_length tokens", "Raise max_length, or shorten them."),
    ProblemKind.TRUNCATED: ("cut to max_length", "at most max_length tokens", "Raise max_length, or shorten them."),
    ProblemKind.SPLIT: ("split into pieces", "at most max_length tokens", "Raise max_length for longer pieces."),
    ProblemKind.EMPTY_AFTER_MASKING: (
        "without a token to train on; dropped",
        "an answer within max_length",
        "Add the answer, or raise max_length.",
    ),
    ProblemKind.DUPLICATE: ("with the tokens of an earlier row", "each row once", "Remove copies that are not meant."),
    ProblemKind.IN_TRAIN_AND_VALIDATION: (
        "of the validation data that are also trained on",
        "validation rows that are not trained on",
        "Remove them from one of the two.",
    ),
    ProblemKind.IN_TEST_AND_ANOTHER: (
        "of the test data that are also trained on or chosen by",
        "test rows that no earlier step reads",
        "Remove them from one of the two.",
    ),
    ProblemKind.BORDER_INSIDE_TOKEN: (
        "where one token spans the end of the prompt and the start of the answer; it is trained",
        "a border between two tokens",
        "End prompts in a newline if it matters.",
    ),
    ProblemKind.VALIDATED_ON_TEST_SPLIT: (
        "no validation split, so trials are compared on its test split",
        "rows that no reported result is measured on",
        "Write validation: 0.1 to set training rows aside, or name a file.",
    ),
}


# these are about a whole source and not about single rows
_OF_SOURCES = (ProblemKind.VALIDATED_ON_TEST_SPLIT,)


def split_notes(report: DataReport, *, max_length: int) -> tuple[str, ...]:
    """Return what to know about the rows before training; ``max_length`` is the task's."""
    # a result chosen on the test split is no result to publish
    notes = report.samples.get(ProblemKind.VALIDATED_ON_TEST_SPLIT, ())
    if report.mix_text is not None:
        notes = (*notes, report.mix_text)
    if report.max_length < max_length:
        shorter = (
            f"rows have at most {report.max_length} tokens, the model's context, instead of the default {max_length}"
        )
        return (*notes, f"{shorter}; write dataset.max_length to choose another length")
    return notes


def data_counts(report: DataReport) -> dict[str, int]:
    return {
        "rows_read": report.num_rows_read,
        "usable_training_rows": report.num_usable_train_rows,
        "training_rows": report.num_train_rows,
        "trained_tokens_per_epoch": report.num_trained_tokens,
        "validation_rows": report.num_validation_rows,
        **({"test_rows": report.num_test_rows} if report.num_test_rows else {}),
        **report.counts,
    }


def data_problems(report: DataReport) -> tuple[DataProblem, ...]:
    """Return a note for each kind that occurred."""
    notes = []
    for kind, count in report.counts.items():
        found, allowed, hint = _TEXTS.get(ProblemKind(kind), (kind.replace("_", " "), "", ""))
        places = report.lines[kind]
        more = f" and {count - _PLACES_SHOWN} more" if count > _PLACES_SHOWN else ""
        notes.append(
            DataProblem(
                where=", ".join(places[:_PLACES_SHOWN]) + more,
                found=found if kind in _OF_SOURCES else f"{counted(count, 'row')} {found}",
                allowed=allowed,
                hint=hint,
            )
        )
    return tuple(notes)
