"""Answers to all prompts of a file, in a file: packed, with progress, and resumed after any stop.

Finished answers go to ``OUTPUT.partial`` one by one, in the order in which they are finished. When all are there,
OUTPUT is written at once, in the order of the prompts, and the partial file goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from cohort.adapter_files.base_model import RunBase, open_base
from cohort.adapter_files.choose import BestSoFar
from cohort.adapter_files.generate import GenerationSettings
from cohort.adapter_files.input_rows import find_source, raise_problems, read_rows
from cohort.adapter_files.pace import BatchProgress, Pace
from cohort.adapter_files.prompts import PromptRenderer
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.core.clock import Clock, SystemClock
from cohort.core.durable_files import atomic_file, storage_full_named
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.core.unusual_path import unusual_path
from cohort.data.files.rows import RawRow
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog
from cohort.ranks.answers import Answer
from cohort.runs.directory import RunDirectory
from cohort.serving.generate import GenerateRequest

__all__ = ["AnsweredFile", "answer_file"]

ANSWER_KEYS = ("generated", "finish_reason")
"""What is added to a row: the text, and ``stop`` or ``length`` (it reached ``max_new_tokens`` or the context)."""


@dataclass(frozen=True, kw_only=True)
class AnsweredFile:
    """A file of answers.

    Attributes:
        num_resumed: Answers that an earlier process had finished.
        so_far: The checkpoint of an unfinished run.
        note: For the user, about the base model and the device.
    """

    path: Path
    num_rows: int
    num_resumed: int
    so_far: BestSoFar | None = None
    note: str | None = None


def answer_file(
    run_directory: Path,
    *,
    source: Path,
    output: Path,
    settings: GenerationSettings,
    trial_id: int | None = None,
    model: str | None = None,
    watcher: Callable[[BatchProgress], None] = lambda _: None,
    clock: Clock | None = None,
) -> AnsweredFile:
    """Answer every row of ``source`` with an adapter of a run, and write the rows with their answers to ``output``.

    Rows have the form of the run's rows and need no answer. An interrupted call leaves ``output.partial``; the same
    call goes on from there.

    Args:
        output: A new file of JSON lines.
        watcher: Receives progress.

    Raises:
        InputError: a row cannot be used (lists them), there is no such adapter, the base model is another one, or
            ``output`` exists, is being written, or was begun with other prompts or settings.
        StorageFullError: the disk is full; the same call goes on once there is room.
    """
    clock = clock or SystemClock()
    directory = RunDirectory.open(run_directory)
    _require_new(output)
    found = find_source(source, option="--input")
    rows = read_rows(found, option="--input")
    _require_free_keys(rows, source=found.shown)
    base = open_base(directory, model=model)
    adapter, so_far = (None, None) if settings.use_base else read_chosen(directory, trial_id=trial_id, base=base)
    watcher(BatchProgress(phase="loading", num_done=0, num_rows=len(rows), elapsed_seconds=0.0))
    loaded = RunModel(base)
    loaded.hold([] if adapter is None else [adapter])
    renderer = PromptRenderer(base=base, tokenizer=loaded.tokenizer, is_raw=settings.is_raw)
    prompts = _encoded(rows, renderer, context=loaded.decoder.config.max_position_embeddings)
    fingerprint = _fingerprint(prompts, settings=settings, adapter=adapter, base=base)
    with _journal(output, fingerprint=fingerprint, num_rows=len(rows)) as (stream, answered):
        resumed = len(answered)
        left = [place for place in range(len(rows)) if place not in answered]
        requests = [
            GenerateRequest(
                prompt_tokens=prompts[place],
                max_new_tokens=settings.max_new_tokens,
                slot=loaded.slots[0] if loaded.slots else None,
                seed=settings.seed,
            )
            for place in left
        ]
        pace = Pace(clock, num_rows=len(rows), num_before=resumed)
        watcher(pace.progress())
        for answer in loaded.answers(requests, sampling=settings.sampling):
            entry = {"row": left[answer.index], **_answer(loaded, answer)}
            _append(stream, entry)
            answered[entry["row"]] = entry
            pace.count(answer)
            watcher(pace.progress())
        with atomic_file(output) as partial, partial.open("w", encoding="utf-8") as lines:
            for place, row in enumerate(rows):
                own = {key: answered[place][key] for key in ANSWER_KEYS}
                # parquet files hold values that JSON does not have, such as dates
                lines.write(json.dumps({**row.values, **own}, ensure_ascii=False, default=str) + "\n")
        _journal_path(output).unlink()
    return AnsweredFile(path=output, num_rows=len(rows), num_resumed=resumed, so_far=so_far, note=loaded.note)


def _answer(loaded: RunModel, answer: Answer) -> dict[str, Any]:
    return dict(zip(ANSWER_KEYS, (loaded.text(answer.tokens), "length" if answer.is_cut else "stop"), strict=True))


def _require_new(output: Path) -> None:
    folder = output.parent
    if (unusual := unusual_path(output)) is not None:
        found, hint = unusual.found, "Name a new file."
    elif output.exists():
        found = "a directory" if output.is_dir() else "a file that exists"
        hint = "Choose another file, or delete this one." if output.is_file() else "Name a new file."
    elif not folder.is_dir():
        found, hint = f"a file in {folder}, which is no directory", "Make the directory first."
    elif not os.access(folder, os.W_OK | os.X_OK):
        found, hint = f"a file in {folder}, which is not writable", "Choose another directory."
    else:
        return
    raise InputError(_output_problem(output, found, hint=hint))


def _output_problem(output: Path, found: str, *, hint: str) -> Problem:
    where = Place(option="command line --output", text=str(output))
    return Problem(where=where, found=found, allowed="a new file in a directory that you may write to", hint=hint)


def _require_free_keys(rows: Sequence[RawRow], *, source: str) -> None:
    taken = sorted({key for row in rows for key in ANSWER_KEYS if key in row.values})
    if taken:
        raise InputError(
            Problem(
                where=source,
                found=f"rows that have a column {' and a column '.join(taken)} already",
                allowed=f"rows without {' and '.join(ANSWER_KEYS)}, which hold the answers",
                hint="Rename the column, so that the answers do not replace it.",
            )
        )


def _encoded(rows: Sequence[RawRow], renderer: PromptRenderer, *, context: int) -> list[list[int]]:
    """Return the prompt tokens of every row.

    Raises:
        InputError: a row asks nothing, or more than the model's context holds; lists them.
    """
    log, encoded = ProblemLog(), []
    for row in rows:
        try:
            tokens = renderer.encode(renderer.of_row(row))
        except BadRowError as error:
            log.extend([error.at(row.where)])
            continue
        if not 0 < len(tokens) < context:
            log.add(
                ProblemKind.TOO_LONG,
                where=row.where,
                found=f"a prompt of {len(tokens)} tokens",
                allowed=f"1 to {context - 1} tokens (the model's context is {context})",
                hint="Shorten the prompt." if tokens else "Write a prompt.",
            )
        encoded.append(tokens)
    # every row is answered: none is left out
    raise_problems(log.stopping(bad_rows_stop=True, long_rows_stop=True, can_skip=False))
    return encoded


def _fingerprint(
    prompts: Sequence[Sequence[int]], *, settings: GenerationSettings, adapter: PeftAdapter | None, base: RunBase
) -> str:
    """Return a digest of all that the answers depend on."""
    digest = hashlib.sha256(json.dumps([asdict(settings), base.facts.inputs.model_hash, list(prompts)]).encode())
    if adapter is not None:
        digest.update(json.dumps(asdict(adapter.spec)).encode())
        for name, tensor in sorted(adapter.tensors.items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _journal_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


@contextmanager
def _journal(
    output: Path, *, fingerprint: str, num_rows: int
) -> Iterator[tuple[IO[bytes], dict[int, Mapping[str, Any]]]]:
    """Yield the partial file, open for more answers, and the answers that it holds by row.

    Raises:
        InputError: another process writes it, or it was begun with other prompts or settings.
    """
    path = _journal_path(output)
    with storage_full_named(path):
        try:
            stream = path.open("a+b")
        except OSError as error:
            # some file systems refuse only when asked
            found = f"a path where no file can be made ({error.strerror})"
            raise InputError(_output_problem(output, found, hint="Choose another directory.")) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "Wait until it ends, or choose another --output."
            raise _journal_problem(path, "a file that another process is writing", hint=hint) from error
        stream.seek(0)
        whole = _whole_lines(stream.read())
        header = {"fingerprint": fingerprint, "rows": num_rows}
        if whole and _parsed(whole[0]) != header:
            hint = "Repeat the command as it was to finish it, delete this file, or choose another --output."
            raise _journal_problem(path, "answers to other prompts, or with other settings or weights", hint=hint)
        # a line that a kill cut off is written again
        stream.truncate(sum(len(line) for line in whole))
        if not whole:
            _append(stream, header)
        yield stream, {entry["row"]: entry for line in whole[1:] if (entry := _parsed(line)) is not None}


def _append(stream: IO[bytes], entry: Mapping[str, Any]) -> None:
    with storage_full_named(stream.name):
        stream.write(json.dumps(entry).encode() + b"\n")
        # a killed process loses nothing that was flushed
        stream.flush()


def _whole_lines(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _journal_problem(path: Path, found: str, *, hint: str) -> InputError:
    return InputError(
        Problem(where=Place(file=str(path)), found=found, allowed="answers of this same command", hint=hint)
    )
