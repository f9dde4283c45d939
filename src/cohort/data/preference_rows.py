"""Rows that are compared -> token ids and masks: pairs of answers to one prompt, and single answers with a label.

Both answers of a pair are rendered and tokenised as a prompt with its answer would be. Where they differ in which token
the answer begins in (a tokenizer may merge a prompt's last character with one answer's first), the earlier one holds
for both, as in TRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cohort.core.source_location import Place
from cohort.data.chat import ChatRenderer
from cohort.data.examples import Conversation, Example, LabelledAnswer, PreferencePair, PromptCompletion
from cohort.data.files.formats import DataFormat, ParsedRow
from cohort.data.masking import RenderedRow
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog
from cohort.data.settings import DatasetSettings, RowReading
from cohort.data.token_rows import TokenRow
from cohort.data.tokenise import encoded_rows, kept_tokens, note_empty, note_straddling, rendered_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["note_format_of_others", "tokenise_compared"]

_READ_FORMATS = {
    RowReading.ANSWERS: tuple(
        entry
        for entry in DataFormat
        if entry not in (DataFormat.PREFERENCE, DataFormat.UNPAIRED_PREFERENCE, DataFormat.PROMPT)
    ),
    RowReading.PAIRS: (DataFormat.PREFERENCE,),
    RowReading.LABELS: (DataFormat.UNPAIRED_PREFERENCE, DataFormat.PREFERENCE),
    RowReading.PROMPTS: tuple(
        entry
        for entry in DataFormat
        if entry not in (DataFormat.PREFERENCE, DataFormat.UNPAIRED_PREFERENCE, DataFormat.TEXT)
    ),
}
_HINTS = {
    RowReading.ANSWERS: "To train on the better answers write columns: {completion: chosen} and format: "
    "prompt_completion; to compare them write objective: dpo.",
    RowReading.PAIRS: "Give each row prompt, chosen and rejected, or write objective: sft.",
    RowReading.LABELS: "Give each row prompt, completion and label (true or false), or write objective: sft.",
    RowReading.PROMPTS: "Give each row a prompt, a text or a list of messages.",
}


def note_format_of_others(found: DataFormat, *, settings: DatasetSettings, log: ProblemLog) -> None:
    """Note rows in a format that the task's objective does not read."""
    read = _READ_FORMATS[settings.reads]
    if found in read:
        return
    words = {
        DataFormat.PROMPT: " (a prompt without an answer)",
        DataFormat.PREFERENCE: " (chosen and rejected)",
        DataFormat.UNPAIRED_PREFERENCE: " (completion and label)",
    }
    log.add(
        ProblemKind.INPUT,
        where=settings.key("format"),
        found=f"{found.value} rows{words.get(found, '')}",
        allowed=f"{' | '.join(entry.value for entry in read)}, for an objective that reads {settings.reads.value}",
        hint=_HINTS[settings.reads],
    )


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """One answer as it is trained."""

    where: Place
    row: RenderedRow
    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]

    @property
    def start(self) -> int:
        return int(self.trained.argmax())


def tokenise_compared(
    rows: Sequence[ParsedRow], *, tokenizer: PreTrainedTokenizerBase, settings: DatasetSettings, log: ProblemLog
) -> tuple[list[TokenRow], NDArray[np.int64]]:
    """Return the rows whose answers are short enough, and the length of each answer with its prompt before cutting.

    ``settings.reads`` says whether a row is a pair or an answer with a label; a pair is two answers with labels there.
    ``log`` gets a note about every other row.
    """
    chat = ChatRenderer(tokenizer=tokenizer, last_turn_only=settings.trained_turns == "last")
    rendered: list[tuple[Place, RenderedRow]] = []
    counts: list[int] = []
    labels: list[bool] = []
    for row in rows:
        try:
            answers = [
                replace(_rendered(example, chat=chat), columns=row.columns) for example, _ in _answers(row.example)
            ]
        except BadRowError as problem:
            log.extend([problem.at(row.where)])
            continue
        rendered += [(row.where, answer) for answer in answers]
        counts.append(len(answers))
        labels += [label for _, label in _answers(row.example)]
    if not rendered:
        return [], np.empty(0, dtype=np.int64)
    kept: list[TokenRow] = []
    lengths: list[int] = []
    encoded = encoded_rows(rendered, tokenizer=tokenizer)
    label_of = iter(labels)
    for count in counts:
        found = [next(encoded) for _ in range(count)]
        own = [next(label_of) for _ in range(count)]
        lengths += [len(tokens) for _, tokens, _, _ in found]
        if any(straddles for *_, straddles in found):
            note_straddling(found[0][0][0], log=log)
        answers_kept = [_cut(where, row, tokens, trained, settings=settings, log=log)
                        for (where, row), tokens, trained, _ in found]  # fmt: skip
        if settings.reads is RowReading.LABELS:
            kept += [_token_row(answer, label=label) for answer, label in zip(answers_kept, own, strict=True) if answer]
        elif all(answers_kept):
            chosen, rejected = (answer for answer in answers_kept if answer is not None)
            kept += _pair(chosen, rejected, log=log)
    return kept, np.asarray(lengths, dtype=np.int64)


def _answers(example: Example) -> Iterator[tuple[Example, bool]]:
    """Yield each answer of a row with its prompt, and whether it is the better one."""
    if isinstance(example, LabelledAnswer):
        yield example.answer, example.is_desirable
        return
    assert isinstance(example, PreferencePair), "rows of other formats are refused before"
    for answer, is_better in ((example.chosen, True), (example.rejected, False)):
        if isinstance(answer, str):
            assert isinstance(example.prompt, str), "prompt and answers have one form"
            yield PromptCompletion(prompt=example.prompt, completion=answer), is_better
        else:
            assert not isinstance(example.prompt, str), "prompt and answers have one form"
            yield Conversation(messages=(*example.prompt, *answer), tools=example.tools), is_better


def _rendered(example: Example, *, chat: ChatRenderer) -> RenderedRow:
    return chat.render(example) if isinstance(example, Conversation) else rendered_text(example, chat=chat)


def _cut(
    where: Place,
    row: RenderedRow,
    tokens: NDArray[np.int32],
    trained: NDArray[np.bool_],
    *,
    settings: DatasetSettings,
    log: ProblemLog,
) -> _Answer | None:
    num_kept = kept_tokens(where, num_tokens=len(tokens), settings=settings, log=log)
    if num_kept is None:
        return None
    tokens, trained = tokens[:num_kept], trained[:num_kept]
    if not trained.any():
        note_empty(where, num_tokens=len(tokens), log=log)
        return None
    return _Answer(where=where, row=row, tokens=tokens, trained=trained)


def _pair(chosen: _Answer, rejected: _Answer, *, log: ProblemLog) -> Iterator[TokenRow]:
    start = min(chosen.start, rejected.start)
    chosen, rejected = (_from(answer, start) for answer in (chosen, rejected))
    if np.array_equal(chosen.tokens, rejected.tokens):
        log.add(
            ProblemKind.EMPTY_AFTER_MASKING,
            where=chosen.where,
            found=f"the same {len(chosen.tokens)} tokens in both answers, as far as they are kept",
            allowed="two answers that differ within max_length",
            hint="Raise max_length, or remove the row.",
        )
        return
    yield replace(_token_row(chosen), other=_token_row(rejected))


def _from(answer: _Answer, start: int) -> _Answer:
    """Return the answer as it is trained from token ``start`` on."""
    if answer.start == start:
        return answer
    trained = answer.trained.copy()
    trained[start : answer.start] = True
    return replace(answer, trained=trained)


def _token_row(answer: _Answer, *, label: bool | None = None) -> TokenRow:
    return TokenRow(
        where=answer.where,
        tokens=answer.tokens,
        trained=answer.trained,
        prompt=answer.row.prompt,
        reference=answer.row.reference,
        columns=answer.row.columns,
        answer_start=answer.start,
        label=label,
    )
