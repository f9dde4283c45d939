"""Rows that ask alone, for objectives that draw the answers themselves: prompts -> token ids.

The tokens of a row are those that generation starts from. Its columns are kept, for the functions that reward answers:
those of the file, with the prompt as they are given it under ``prompt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cohort.data.chat import ChatRenderer
from cohort.data.examples import Conversation, PromptCompletion
from cohort.data.files.formats import ParsedRow, renamed
from cohort.data.problems import BadRowError, ProblemLog
from cohort.data.settings import DatasetSettings
from cohort.data.token_rows import TokenRow
from cohort.data.tokenise import encode_prompt, kept_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["tokenise_prompts"]


def tokenise_prompts(
    rows: Sequence[ParsedRow], *, tokenizer: PreTrainedTokenizerBase, settings: DatasetSettings, log: ProblemLog
) -> tuple[list[TokenRow], NDArray[np.int64]]:
    """Return the rows whose prompts are short enough, none of their tokens trained, and the length of each prompt.

    ``log`` gets a note about every other row.
    """
    chat = ChatRenderer(tokenizer=tokenizer)
    kept: list[TokenRow] = []
    lengths: list[int] = []
    for row in rows:
        example = row.example
        assert isinstance(example, Conversation | PromptCompletion), "rows of other formats are refused before"
        is_chat = isinstance(example, Conversation)
        try:
            text = chat.prompt(example) if isinstance(example, Conversation) else example.prompt
        except BadRowError as problem:
            log.extend([problem.at(row.where)])
            continue
        tokens = np.asarray(encode_prompt(text, tokenizer=tokenizer, is_chat=is_chat), dtype=np.int32)
        lengths.append(len(tokens))
        if kept_tokens(row.where, num_tokens=len(tokens), settings=settings, log=log) is None:
            continue
        columns = _columns(row, example=example, settings=settings)
        expected = columns.get("completion")
        kept.append(
            TokenRow(
                where=row.where,
                tokens=tokens,
                trained=np.zeros(len(tokens), dtype=np.bool_),
                prompt=text,
                reference=expected if isinstance(expected, str) else "",
                columns=columns,
            )
        )
    return kept, np.asarray(lengths, dtype=np.int64)


def _columns(
    row: ParsedRow, *, example: Conversation | PromptCompletion, settings: DatasetSettings
) -> Mapping[str, Any]:
    """Return what functions are given of a row: its own columns, and ours where the task maps them."""
    ours = renamed(row.columns, columns=settings.columns)
    asked = (
        [message.for_template() for message in example.messages]
        if isinstance(example, Conversation)
        else example.prompt
    )
    return {**row.columns, **{name: ours[name] for name in settings.columns if name in ours}, "prompt": asked}
