"""Examples -> token ids and loss masks. Text is tokenised joined, borders are found by character offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.data.chat import ChatRenderer
from cohort.data.examples import Conversation, Example, PlainText, PromptCompletion
from cohort.data.files.formats import ParsedRow
from cohort.data.masking import RenderedRow, border_is_inside_token, tokens_in_spans
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog
from cohort.data.settings import DatasetSettings, RowReading
from cohort.data.token_rows import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "encode_prompt",
    "encoded_rows",
    "kept_tokens",
    "note_empty",
    "note_straddling",
    "render_rows",
    "rendered_text",
    "require_usable_tokenizer",
    "split_tokens",
    "tokenise_rows",
]

_ROWS_PER_CALL = 512


def require_usable_tokenizer(tokenizer: PreTrainedTokenizerBase, *, where: Place) -> None:
    """Check that the tokenizer gives character offsets and can close a completion.

    Raises:
        InputError: it is not a fast tokenizer, or has no end-of-sequence token.
    """
    problems = []
    name = tokenizer.name_or_path or type(tokenizer).__name__
    if not tokenizer.is_fast:
        problems.append(
            Problem(
                where=where,
                found=f"the tokenizer {name} without character offsets",
                allowed="a fast tokenizer (tokenizer.json)",
                hint="Use a base model whose directory has a tokenizer.json.",
            )
        )
    if tokenizer.eos_token_id is None:
        problems.append(
            Problem(
                where=where,
                found=f"the tokenizer {name} without an end-of-sequence token",
                allowed="a tokenizer with eos_token, since it closes every completion",
                hint="Set eos_token in tokenizer_config.json.",
            )
        )
    if problems:
        raise InputError(problems)


def render_rows(
    rows: Sequence[ParsedRow],
    *,
    tokenizer: PreTrainedTokenizerBase,
    completion_only_loss: bool,
    last_turn_only: bool = False,
    log: ProblemLog,
) -> list[tuple[Place, RenderedRow]]:
    """Return (place, rendered row) of every row that can be rendered; the others are noted in ``log``."""
    chat = ChatRenderer(
        tokenizer=tokenizer,
        completion_only_loss=completion_only_loss,
        last_turn_only=last_turn_only,
    )
    rendered = []
    for row in rows:
        try:
            rendered.append((row.where, replace(_rendered(row.example, chat=chat), columns=row.columns)))
        except BadRowError as problem:
            log.extend([problem.at(row.where)])
    return rendered


def _rendered(example: Example, *, chat: ChatRenderer) -> RenderedRow:
    return chat.render(example) if isinstance(example, Conversation) else rendered_text(example, chat=chat)


def rendered_text(example: Example, *, chat: ChatRenderer) -> RenderedRow:
    """Return text, or a prompt and its answer, as one row."""
    if isinstance(example, PlainText):
        text, border, prompt, reference = example.text, 0, "", ""
    elif isinstance(example, PromptCompletion):
        text, border = example.prompt + example.completion, len(example.prompt)
        prompt, reference = example.prompt, example.completion
    else:
        raise TypeError(f"{type(example).__name__} has no single rendering as text")
    span = (border if chat.completion_only_loss else 0, len(text))
    return RenderedRow(
        text=text, trained_spans=(span,), add_special_tokens=True, append_eos=True, prompt=prompt, reference=reference
    )


def tokenise_rows(
    rendered: Sequence[tuple[Place, RenderedRow]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    settings: DatasetSettings,
    log: ProblemLog,
) -> tuple[list[TokenRow], NDArray[np.int64]]:
    """Return the rows that are short enough and have something to train, and each row's length before cutting.

    ``log`` gets a note about every other row.
    """
    kept: list[TokenRow] = []
    lengths: list[int] = []
    for (where, row), tokens, trained, straddles in encoded_rows(rendered, tokenizer=tokenizer):
        lengths.append(len(tokens))
        if straddles and settings.completion_only_loss:
            note_straddling(where, log=log)
        if len(tokens) > settings.max_length and settings.on_long_rows == "split":
            kept += _in_pieces(where, row, tokens, trained, tokenizer=tokenizer, settings=settings, log=log)
            continue
        cut = kept_tokens(where, num_tokens=len(tokens), settings=settings, log=log)
        if cut is None:
            continue
        tokens, trained = tokens[:cut], trained[:cut]
        if not trained.any():
            note_empty(where, num_tokens=len(tokens), log=log)
            continue
        kept.append(
            TokenRow(
                where=where,
                tokens=tokens,
                trained=trained,
                prompt=row.prompt,
                reference=row.reference,
                columns=row.columns,
            )
        )
    return kept, np.asarray(lengths, dtype=np.int64)


Encoded = tuple[tuple[Place, RenderedRow], NDArray[np.int32], NDArray[np.bool_], bool]


def encoded_rows(
    rendered: Sequence[tuple[Place, RenderedRow]], *, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Encoded]:
    """Yield each row with its tokens, its mask, and whether a token holds the end of its prompt and its answer."""
    for begin in range(0, len(rendered), _ROWS_PER_CALL):
        yield from _encoded(rendered[begin : begin + _ROWS_PER_CALL], tokenizer=tokenizer)


def _encoded(chunk: Sequence[tuple[Place, RenderedRow]], *, tokenizer: PreTrainedTokenizerBase) -> Iterator[Encoded]:
    batch = tokenizer(
        [row.text for _, row in chunk],
        # a data set is rendered by the chat template as a whole or not at all
        add_special_tokens=chunk[0][1].add_special_tokens,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        verbose=False,
    )
    columns = zip(chunk, batch["input_ids"], batch["offset_mapping"], batch["special_tokens_mask"], strict=True)
    for entry, ids, pairs, added in columns:
        yield _with_mask(entry, ids=ids, pairs=pairs, added=added, tokenizer=tokenizer)


def _with_mask(
    entry: tuple[Place, RenderedRow],
    *,
    ids: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    added: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
) -> Encoded:
    row = entry[1]
    tokens = np.asarray(ids, dtype=np.int32)
    offsets = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    # in fast tokenizers the mask marks what the tokenizer added, not special tokens written in the text
    is_added = np.asarray(added, dtype=np.bool_) & (offsets[:, 0] == offsets[:, 1])
    trained = tokens_in_spans(offsets, spans=row.trained_spans)
    straddles = border_is_inside_token(offsets, spans=row.trained_spans)
    if row.trained_spans and row.trained_spans[-1][1] == len(row.text) and len(tokens):
        # special tokens the tokenizer adds behind the text close the completion
        trained |= is_added & (np.arange(len(tokens)) > _last_of_text(is_added))
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if len(tokens) > 1 and is_added[0] and tokens[0] == bos and tokens[1] == bos:
        # the text begins with the token the tokenizer adds as well
        tokens, trained = tokens[1:], trained[1:]
    if row.append_eos and (len(tokens) == 0 or tokens[-1] != eos):
        tokens = np.append(tokens, np.int32(eos))
        trained = np.append(trained, np.True_)
    trained[:1] = False
    return entry, tokens, trained, straddles


def _last_of_text(is_added: NDArray[np.bool_]) -> int:
    of_text = np.flatnonzero(~is_added)
    return int(of_text[-1]) if len(of_text) else len(is_added)


def kept_tokens(where: Place, *, num_tokens: int, settings: DatasetSettings, log: ProblemLog) -> int | None:
    """Return how many tokens of the row to keep, or None to leave it out."""
    limit = settings.max_length
    if num_tokens <= limit:
        return num_tokens
    if settings.on_long_rows == "truncate":
        hint = "Raise max_length to keep the row's end."
        log.add(ProblemKind.TRUNCATED, where=where, found=f"{num_tokens} tokens", allowed=f"{limit}", hint=hint)
        return limit
    log.add(
        ProblemKind.TOO_LONG,
        where=where,
        found=f"{num_tokens} tokens",
        allowed=f"at most max_length = {limit}",
        hint="Raise max_length, shorten the row, or set on_long_rows to drop"
        + ("." if settings.reads is RowReading.PROMPTS else " or truncate."),
    )
    return None


def _in_pieces(
    where: Place,
    row: RenderedRow,
    tokens: NDArray[np.int32],
    trained: NDArray[np.bool_],
    *,
    tokenizer: PreTrainedTokenizerBase,
    settings: DatasetSettings,
    log: ProblemLog,
) -> list[TokenRow]:
    """Return a long row of text as rows of at most ``max_length`` tokens."""
    most = settings.max_length
    # a beginning of sequence and one new token always fit
    overlap = max(0, min(int(settings.split_overlap * most), most - 2))
    pieces = split_tokens(tokens, trained, most=most, overlap=overlap, first=tokenizer.bos_token_id)
    whole = tokens.tobytes()
    rows = [
        TokenRow(where=where, tokens=piece, trained=mask, prompt="", reference="", columns=row.columns, whole=whole)
        for piece, mask in pieces
        if mask.any()
    ]
    log.add(
        ProblemKind.SPLIT,
        where=where,
        found=f"{len(tokens)} tokens, split into {len(rows)} pieces",
        allowed=f"{most}",
        hint="Raise max_length for longer pieces.",
    )
    return rows


def note_empty(where: Place, *, num_tokens: int, log: ProblemLog) -> None:
    log.add(
        ProblemKind.EMPTY_AFTER_MASKING,
        where=where,
        found=f"{num_tokens} tokens, none of them trained",
        allowed="a row with at least one trained token after the first",
        hint="Raise max_length if the answer was cut off, or give an answer weight 1.",
    )


def note_straddling(where: Place, *, log: ProblemLog) -> None:
    log.add(
        ProblemKind.BORDER_INSIDE_TOKEN,
        where=where,
        found="a token that holds the end of the prompt and the start of the answer; it is trained",
        allowed="a border between two tokens, so that generation starts from what training saw",
        hint="End the prompt with a line break, or move its last space to the start of the answer.",
    )


def encode_prompt(prompt: str, *, tokenizer: PreTrainedTokenizerBase, is_chat: bool) -> list[int]:
    """Return the token ids generation starts from, for a ``prompt`` of :class:`TokenisedRows`.

    Special tokens are added as in training: the tokenizer's own before plain text, none where a chat template has
    written them, and never an end-of-sequence token behind the prompt.
    """
    batch = tokenizer(prompt, add_special_tokens=not is_chat, return_special_tokens_mask=True, verbose=False)
    ids, added = list(batch["input_ids"]), list(batch["special_tokens_mask"])
    while len(ids) > 1 and added[-1] and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
        added.pop()
    if len(ids) > 1 and added[0] and ids[0] == ids[1] == tokenizer.bos_token_id:
        ids.pop(0)
    return ids


def split_tokens(
    tokens: NDArray[np.int32], trained: NDArray[np.bool_], *, most: int, overlap: int, first: int | None
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield pieces of at most ``most`` tokens, each with its mask, which together train what ``trained`` [L] says.

    A piece begins with the last ``overlap`` tokens of the one before, as context that is not trained again, and with
    the token ``first`` (a beginning of sequence) if there is one. Without either, its first token is not trained, since
    nothing in the piece predicts it.

    Raises:
        ValueError: no room is left for new tokens.
    """
    begins_with_first = first is not None and len(tokens) > 0 and int(tokens[0]) == first
    head = np.asarray([first] if begins_with_first else [], dtype=np.int32)
    if most - len(head) - overlap < 1:
        raise ValueError(f"pieces of {most} tokens have no room after {len(head)} and an overlap of {overlap}")
    end = min(most, len(tokens))
    yield tokens[:end], trained[:end]
    while end < len(tokens):
        start = end - overlap
        until = min(start + most - len(head), len(tokens))
        piece = np.concatenate([head, tokens[start:until]])
        mask = np.concatenate([np.zeros(len(head), dtype=np.bool_), trained[start:until]])
        mask[: len(head) + overlap] = False
        mask[:1] = False
        yield piece, mask
        end = until
