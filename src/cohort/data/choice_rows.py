"""Rows with choices, for metrics by likelihood: each row once for every answer that it could have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.examples import Conversation, Example, PromptCompletion
from cohort.data.files.formats import ParsedRow, renamed
from cohort.data.files.parsing import parse_row
from cohort.data.problems import LISTED_PROBLEMS, BadRowError, ProblemKind, ProblemLog, capped
from cohort.data.settings import DatasetSettings
from cohort.data.token_rows import flattened
from cohort.data.tokenise import render_rows, tokenise_rows
from cohort.data.tokenised import TokenisedRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChoiceRows", "choice_rows", "num_choices"]

_ALLOWED = "choices: a list of two or more different strings, one of them the row's answer"


@dataclass(frozen=True, kw_only=True)
class ChoiceRows:
    """The choices of some rows.

    Attributes:
        rows: Every choice of every row: the row with that choice as its answer, which alone is trained.
        starts: Place of each row's first choice in ``rows``, and their number at the end.
        expected: Which of its choices each row's answer is.
    """

    rows: TokenisedRows
    starts: tuple[int, ...]
    expected: tuple[int, ...]

    def accuracy_of(self, losses: Sequence[float]) -> tuple[float, ...]:
        """Return, for each row, 1 where the expected choice has the lowest of ``losses``, else 0.

        ``losses`` are those of ``rows``; of equal ones the first choice counts. A NaN is no choice at all.
        """
        found = []
        for start, end, expected in zip(self.starts, self.starts[1:], self.expected, strict=False):
            own = [math.inf if math.isnan(loss) else loss for loss in losses[start:end]]
            found.append(float(own.index(min(own)) == expected and math.isfinite(own[expected])))
        return tuple(found)


def num_choices(rows: TokenisedRows, row_id: int, *, settings: DatasetSettings) -> int:
    """Return how many choices a row has, as far as it can be told without checking them; 0 for none."""
    choices = _values(rows, row_id, settings=settings)[1].get("choices")
    return len(choices) if isinstance(choices, list) else 0


def choice_rows(
    rows: TokenisedRows,
    row_ids: Sequence[int],
    *,
    settings: DatasetSettings,
    data_format: str,
    tokenizer: PreTrainedTokenizerBase,
    can_map: bool = True,
) -> ChoiceRows:
    """Return the choices of ``row_ids``, rendered and tokenised as the rows themselves are.

    ``can_map`` says whether there is a task file whose ``dataset.columns`` could name them, as the error then says.

    Raises:
        InputError: a row has no choices, its answer is none of them, or one of them is longer than ``max_length``.
    """
    parsed: list[ParsedRow] = []
    starts, expected = [0], []
    log = ProblemLog()
    for row_id in row_ids:
        where = _place(rows.sources[row_id])
        try:
            examples, right = _examples(rows, row_id, settings=settings, data_format=data_format, can_map=can_map)
        except BadRowError as problem:
            log.extend([problem.at(where)])
            continue
        parsed += [ParsedRow(where=where, example=example) for example in examples]
        starts.append(len(parsed))
        expected.append(right)
    # the loss of a choice is that of its own tokens, whatever the training loss counts
    strict = replace(settings, on_long_rows="error", completion_only_loss=True)
    rendered = render_rows(parsed, tokenizer=tokenizer, completion_only_loss=True, log=log)
    kept = tokenise_rows(rendered, tokenizer=tokenizer, settings=strict, log=log)[0] if rendered else []
    # a skipped row would still be asked for its choices
    problems = log.stopping(bad_rows_stop=True, long_rows_stop=True, can_skip=False) + log.of(
        ProblemKind.EMPTY_AFTER_MASKING
    )
    if problems:
        raise InputError(capped(problems, limit=LISTED_PROBLEMS))
    return ChoiceRows(
        rows=flattened(kept, identity=rows.fingerprint, keeps_columns=False),
        starts=tuple(starts),
        expected=tuple(expected),
    )


def _place(source: str) -> Place:
    """Return the file and line of a row, so that a fault of all rows is reported once."""
    file, _, line = source.rpartition(":")
    return Place(file=file, line=int(line)) if file and line.isdecimal() else Place(text=source)


def _values(rows: TokenisedRows, row_id: int, *, settings: DatasetSettings) -> tuple[dict[str, Any], Any]:
    original: dict[str, Any] = json.loads(rows.columns[row_id]) if rows.columns else {}
    return original, renamed(original, columns=settings.columns)


def _examples(
    rows: TokenisedRows, row_id: int, *, settings: DatasetSettings, data_format: str, can_map: bool
) -> tuple[list[Example], int]:
    """Return the row with each of its choices for an answer, and which of them is right.

    Raises:
        BadRowError: it has no choices, or its answer is none of them.
    """
    original, values = _values(rows, row_id, settings=settings)
    choices, answer = values.get("choices"), rows.references[row_id]
    name = values.name("choices")
    if choices is None:
        hint = "Add the column, or map it: dataset.columns: {choices: NAME}." if can_map else "Add the column."
        raise BadRowError(found=f"no {name!r} in the row", allowed=_ALLOWED, hint=hint)
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise BadRowError(found=f"{name}: {choices!r:.80}", allowed=_ALLOWED, hint="Write a list of strings.")
    stripped = [choice.strip() for choice in choices]
    if len(set(stripped)) < max(2, len(stripped)):
        raise BadRowError(found=f"{name}: {choices!r:.80}", allowed=_ALLOWED, hint="Write each choice once.")
    if answer.strip() not in stripped:
        hint = "Write the answer as it stands among the choices."
        raise BadRowError(found=f"the answer {answer!r:.60} and {name}: {choices!r:.80}", allowed=_ALLOWED, hint=hint)
    example = parse_row(values, original=original, data_format=data_format, template=settings.prompt_template)
    return list(_with_choices(example, stripped)), stripped.index(answer.strip())


def _with_choices(example: Example, choices: Sequence[str]) -> Iterator[Example]:
    for choice in choices:
        if isinstance(example, PromptCompletion):
            # white space around the answer is part of how the model was taught to answer
            written, bare = example.completion, example.completion.strip()
            yield replace(example, completion=written.replace(bare, choice, 1))
        elif isinstance(example, Conversation):
            messages = example.messages
            place = max(
                (p for p, message in enumerate(messages) if message.role == "assistant" and p > 0),
                key=lambda p: (messages[p].trained, p),
            )
            asked = tuple(replace(message, trained=False) for message in messages[:place])
            yield replace(example, messages=(*asked, replace(messages[place], content=choice, trained=True)))
        else:
            raise BadRowError(
                found="a row without a prompt", allowed=_ALLOWED, hint="Give the rows a prompt and a completion."
            )
