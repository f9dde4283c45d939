"""From the dataset section of a task to tokenised rows: read, parse, render, tokenise, split, report, cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cohort.core.cache_directory import default_cache_directory
from cohort.core.errors import InputError, StorageFullError
from cohort.data.cache import CachedData, read_cache, write_cache
from cohort.data.chat import require_chat_template
from cohort.data.files.formats import DataFormat, ParsedRow
from cohort.data.files.reading import InputSource, ParsedDataset, find_sources, raise_stopping, read_examples
from cohort.data.identity import cache_key, digest, identity_of, tokenizer_hash
from cohort.data.lengths import measure_lengths
from cohort.data.mixing import MixedDataset, mix_rows, note_datasets_named_twice
from cohort.data.preference_rows import note_format_of_others, tokenise_compared
from cohort.data.problems import LISTED_PROBLEMS, ProblemKind, ProblemLog
from cohort.data.prompt_rows import tokenise_prompts
from cohort.data.report import DataReport, collect_notes, split_input
from cohort.data.settings import DatasetSettings, RowReading
from cohort.data.splits import choose_rows, duplicates_of_earlier, split_off_share
from cohort.data.token_rows import TokenRow, flattened
from cohort.data.tokenise import render_rows, require_usable_tokenizer, tokenise_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

__all__ = ["LoadedDataset", "load_dataset"]


@dataclass(frozen=True, kw_only=True)
class LoadedDataset(CachedData):
    """What a task trains and evaluates on.

    Attributes:
        cache_status: ``hit``, ``written``, ``off``, or why the cache could not be written.
    """

    cache_status: str

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is used."""
        read = [self.train, self.all_validation, *([] if self.test is None else [self.test])]
        return int(max(rows.lengths.max() for rows in read))


def load_dataset(
    settings: DatasetSettings,
    *,
    tokenizer: PreTrainedTokenizerBase,
    evaluation_max_examples: int | None = 128,
    cache_dir: Path | None = None,
    use_cache: bool = True,
    max_problems: int | None = LISTED_PROBLEMS,
    can_skip: bool = True,
) -> LoadedDataset:
    """Return the tokenised training and validation rows of a task.

    Args:
        settings: The dataset section.
        tokenizer: The base model's own, a fast one.
        evaluation_max_examples: Most validation rows for the evaluations of a trial, chosen by seed; None takes all.
        cache_dir: Where tokenised rows are kept; :func:`default_cache_directory` when None.
        use_cache: False neither reads nor writes the cache.
        max_problems: How many problems the error lists before it says how many more there are; None lists all.
        can_skip: Whether there is a task file in which ``on_bad_rows: skip`` can be written, as the error then says.

    Raises:
        InputError: the data cannot be used, with every problem found in every file.
    """
    if evaluation_max_examples is not None and evaluation_max_examples < 1:
        raise ValueError(f"evaluation_max_examples must be at least 1 or None, found {evaluation_max_examples}")
    require_usable_tokenizer(tokenizer, where=settings.where)
    log = ProblemLog()
    sources = find_sources(settings, log=log)
    note_datasets_named_twice(sources, settings=settings, log=log)
    identity = identity_of(settings, sources, tokenizer=tokenizer, evaluation_max_examples=evaluation_max_examples)
    # rows remember the names of their files, for messages; where a file lies is no part of what it holds
    names = [entry.source.shown for entry in sources]
    key = cache_key(identity, names=names)
    directory = default_cache_directory() if cache_dir is None else cache_dir
    is_clean = all(entry.kind is ProblemKind.VALIDATED_ON_TEST_SPLIT for entry in log.entries)
    cached = read_cache(directory, key=key) if use_cache and is_clean else None
    if cached is not None:
        return LoadedDataset(**vars(cached), cache_status="hit")
    data = _load(
        sources,
        settings=settings,
        tokenizer=tokenizer,
        evaluation_max_examples=evaluation_max_examples,
        identity=identity,
        log=log,
        max_problems=max_problems,
        can_skip=can_skip,
    )
    status = _try_to_cache(directory, key=key, data=data) if use_cache else "off"
    return LoadedDataset(**vars(data), cache_status=status)


def _load(
    sources: Sequence[InputSource],
    *,
    settings: DatasetSettings,
    tokenizer: PreTrainedTokenizerBase,
    evaluation_max_examples: int | None,
    identity: str,
    log: ProblemLog,
    max_problems: int | None,
    can_skip: bool,
) -> CachedData:
    tokenizer_digest = tokenizer_hash(tokenizer)
    parsed = read_examples(sources, settings=settings, log=log)
    train, validation, test, lengths = _tokenised(parsed, settings=settings, tokenizer=tokenizer, log=log)
    raise_stopping(log, settings=settings, max_problems=max_problems, can_skip=can_skip)
    _note_repeats(train, validation, log=log)
    _note_test_repeats(test, [*train, *validation], log=log)
    # after the files' own problems: how many rows a share leaves is known only once all are read
    train, validation = _with_share(train, validation, settings=settings, log=log)
    _note_nothing_left(train, validation, test, settings=settings, log=log)
    raise_stopping(log, settings=settings, max_problems=max_problems, can_skip=can_skip)
    assert parsed.format is not None, "rows without a format were let through"
    num_usable = len(train)
    train, mix = _trained_on(train, sources=sources, settings=settings, log=log)
    raise_stopping(log, settings=settings, max_problems=max_problems, can_skip=can_skip)
    chosen = choose_rows([row.content for row in validation], limit=evaluation_max_examples, seed=settings.seed)
    evaluated = [validation[index] for index in chosen]
    counts, lines, samples = collect_notes(log)
    train_rows = flattened(train, identity=identity, keeps_columns=settings.reads is RowReading.PROMPTS)
    validation_rows = flattened(evaluated, identity=identity)
    all_rows = validation_rows if len(evaluated) == len(validation) else flattened(validation, identity=identity)
    test_rows = flattened(test, identity=identity) if test else None
    report = DataReport(
        format=parsed.format.value,
        is_chat=parsed.is_chat,
        num_rows_read=sum(parsed.rows_read.values()),
        num_train_rows=len(train),
        num_usable_train_rows=num_usable,
        num_validation_rows=len(validation),
        num_evaluation_rows=len(evaluated),
        num_trained_tokens=int(sum(row.num_trained for row in train)),
        mix=mix,
        counts=counts,
        lines=lines,
        samples=samples,
        lengths=measure_lengths(lengths),
        train_lengths=measure_lengths(train_rows.lengths),
        max_length=settings.max_length,
        data_hash=digest([entry.digest for entry in sources]),
        file_hashes={entry.source.shown: entry.digest for entry in sources},
        tokenizer_hash=tokenizer_digest,
        train_input=split_input("train", train_rows, sources=sources, parsed=parsed),
        validation_input=split_input("validation", validation_rows, sources=sources, parsed=parsed),
        all_validation_input=split_input("validation", all_rows, sources=sources, parsed=parsed),
        num_test_rows=len(test),
        test_input=None if test_rows is None else split_input("test", test_rows, sources=sources, parsed=parsed),
    )
    return CachedData(
        train=train_rows, validation=validation_rows, all_validation=all_rows, test=test_rows, report=report
    )


def _tokenised(
    parsed: ParsedDataset, *, settings: DatasetSettings, tokenizer: PreTrainedTokenizerBase, log: ProblemLog
) -> tuple[list[TokenRow], list[TokenRow], list[TokenRow], NDArray[np.int64]]:
    """Return (training, validation and test rows, every length), or nothing where the format itself stops the run."""
    if parsed.format is not None:
        note_format_of_others(parsed.format, settings=settings, log=log)
    if parsed.is_chat and parsed.format is not None:
        try:
            require_chat_template(tokenizer, found_format=parsed.format.value, where=settings.key("train"))
        except InputError as error:
            log.add_input(error)
    if settings.on_long_rows == "split" and parsed.format is not None and parsed.format is not DataFormat.TEXT:
        log.add(
            ProblemKind.INPUT,
            where=settings.key("on_long_rows"),
            found=f"split with rows in the {parsed.format.value} format",
            allowed="split with text rows: a prompt and its answer belong together",
            hint="Write on_long_rows: drop or truncate.",
        )
    # where no row could be parsed, what the rows are is not known
    is_text = not parsed.is_chat and bool(parsed.train or parsed.validation or parsed.test)
    if parsed.format is not None and is_text:
        _note_keys_of_chats(parsed.format, settings=settings, log=log)
    if log.of(ProblemKind.INPUT):
        return [], [], [], np.empty(0, dtype=np.int64)

    def tokenise(rows: Sequence[ParsedRow]) -> tuple[list[TokenRow], NDArray[np.int64]]:
        if settings.reads is RowReading.PROMPTS:
            return tokenise_prompts(rows, tokenizer=tokenizer, settings=settings, log=log)
        if settings.reads is not RowReading.ANSWERS:
            return tokenise_compared(rows, tokenizer=tokenizer, settings=settings, log=log)
        rendered = render_rows(
            rows,
            tokenizer=tokenizer,
            completion_only_loss=settings.completion_only_loss,
            last_turn_only=settings.trained_turns == "last",
            log=log,
        )
        return tokenise_rows(rendered, tokenizer=tokenizer, settings=settings, log=log)

    train, train_lengths = tokenise(parsed.train)
    validation, validation_lengths = tokenise(parsed.validation)
    # lengths are for choosing max_length by what is trained on
    test, _ = tokenise(parsed.test)
    return train, validation, test, np.concatenate([train_lengths, validation_lengths])


def _note_keys_of_chats(data_format: DataFormat, *, settings: DatasetSettings, log: ProblemLog) -> None:
    """Note keys that only conversations read, for rows of plain text."""
    for key, is_set in (
        ("chat_template", settings.chat_template is not None),
        ("chat_template_kwargs", bool(settings.chat_template_kwargs)),
        ("trained_turns", settings.trained_turns != "all"),
    ):
        if is_set:
            log.add(
                ProblemKind.INPUT,
                where=settings.key(key),
                found=f"{key} with rows in the {data_format.value} format, which are plain text",
                allowed=f"{key} with conversations, such as messages or a prompt that is a list of messages",
                hint=f"Remove {key}, or write the rows as messages.",
            )


def _note_repeats(train: Sequence[TokenRow], validation: Sequence[TokenRow], *, log: ProblemLog) -> None:
    contents = [row.content for row in train]
    for index, earlier in duplicates_of_earlier(contents):
        log.add(
            ProblemKind.DUPLICATE,
            where=train[index].where,
            found=f"the same tokens as {train[earlier].where}",
            allowed="each row once",
            hint="Remove the copy if it is not meant to count twice.",
        )
    first = {content: row.where for content, row in zip(reversed(contents), reversed(train), strict=True)}
    for row in validation:
        if row.content in first:
            log.add(
                ProblemKind.IN_TRAIN_AND_VALIDATION,
                where=row.where,
                found=f"the same tokens as the training row {first[row.content]}",
                allowed="validation rows that are not trained on",
                hint="Remove the row from one of the two files.",
            )


def _note_test_repeats(test: Sequence[TokenRow], others: Sequence[TokenRow], *, log: ProblemLog) -> None:
    first = {row.content: row.where for row in reversed(others)}
    for row in test:
        if row.content in first:
            log.add(
                ProblemKind.IN_TEST_AND_ANOTHER,
                where=row.where,
                found=f"the same tokens as {first[row.content]}",
                allowed="test rows that no earlier step reads",
                hint="Remove the row from one of the two files.",
            )


def _with_share(
    train: list[TokenRow], validation: list[TokenRow], *, settings: DatasetSettings, log: ProblemLog
) -> tuple[list[TokenRow], list[TokenRow]]:
    share = settings.validation
    if not isinstance(share, int | float) or not train:
        return train, validation
    kept, aside = split_off_share([row.whole or row.content for row in train], share=share, seed=settings.seed)
    if not aside or not kept:
        what = "no row for validation" if not aside else "no row to train on"
        if len({row.whole or row.content for row in train}) == 1 < len(train):
            what += "; all of them " + ("are pieces of one row" if train[0].whole else "have the same content")
        log.add(
            ProblemKind.INPUT,
            where=settings.key("validation"),
            found=f"a share of {share:g} of {len(train)} usable rows, which leaves {what}",
            allowed="a share that leaves at least one row on each side (rows of equal content stay together, and so do "
            "the pieces of one row)",
            hint="Change the share, add rows, or name a validation file.",
        )
    return [train[index] for index in kept], [train[index] for index in aside]


def _note_nothing_left(
    train: Sequence[TokenRow],
    validation: Sequence[TokenRow],
    test: Sequence[TokenRow],
    *,
    settings: DatasetSettings,
    log: ProblemLog,
) -> None:
    if log.of(ProblemKind.INPUT):
        return
    is_share = isinstance(settings.validation, int | float)
    counts = ", ".join(f"{kind.replace('_', ' ')}: {count}" for kind, count in log.counts().items())
    for name, rows in (("train", train), ("validation", validation), ("test", test)):
        if rows or (name == "validation" and is_share) or (name == "test" and settings.test is None):
            continue
        log.add(
            ProblemKind.INPUT,
            where=settings.key(name),
            found=f"no usable row ({counts or 'no rows at all'})",
            allowed="at least one row",
            # a prompt that is to be answered is never cut
            hint="Correct the rows; if they are too long, raise max_length"
            + ("." if settings.reads is RowReading.PROMPTS else " or set on_long_rows: truncate."),
        )


def _trained_on(
    train: list[TokenRow], *, sources: Sequence[InputSource], settings: DatasetSettings, log: ProblemLog
) -> tuple[list[TokenRow], tuple[MixedDataset, ...]]:
    """Return the usable rows that are trained on: by weight, and at most ``max_train_samples``."""
    if settings.weights is not None:
        # the limit is the mix's own: shares stay exact, and no row is repeated that need not be
        return mix_rows(train, sources=sources, settings=settings, log=log)
    contents, limit = [row.content for row in train], settings.max_train_samples
    taken = choose_rows(contents, limit=limit, seed=settings.seed, purpose="training rows")
    return [train[index] for index in taken], ()


def _try_to_cache(directory: Path, *, key: str, data: CachedData) -> str:
    try:
        write_cache(directory, key=key, data=data)
    # the cache only saves time, so a full or read-only disk is reported and not fatal
    except StorageFullError:
        return f"not written: no space left in {directory}"
    except OSError as error:
        return f"not written: {error.strerror or error} ({directory})"
    return "written"
