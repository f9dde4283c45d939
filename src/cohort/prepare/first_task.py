"""A first task file for a model and rows: its values follow from what the rows and the model's configuration say."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.core.durable_files import write_text
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.core.units import counted
from cohort.core.unusual_path import unusual_path
from cohort.data.files.formats import DataFormat, detect_format, guess_columns, renamed
from cohort.data.files.reading import find_sources
from cohort.data.files.rows import RawRow, read_source
from cohort.data.files.sources import resolve_sources
from cohort.data.inspection import format_example, render_examples
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.settings import DatasetSettings, RowReading
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.source import find_model
from cohort.models.tokenizer import load_tokenizer
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.tasks.first_task_file import FirstTaskFile
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.yaml_lines import parse_yaml
from cohort.training.objectives.declaration import ObjectiveDeclaration, proposed_for

__all__ = ["separating_template", "write_first_task"]

# an author who ends a prompt so leads to the answer: `1+1=`, `Answer:`, `->`, `###`
_LEADING_MARKS = frozenset("=:>#|]}/\\~*-")
_TEMPLATE = "plain"
_LEARNING_RATES = ("5e-5", "2e-4", "1e-3")
# preferences are learned at a tenth of the rate
_PREFERENCE_RATES = ("5e-6", "2e-5", "1e-4")
_BETAS = ("0.1", "0.3")
_RANKS = (8, 32)
_BATCH_SIZES = (4, 16)
# a comparison needs about this many validation rows to be more than chance
_ENOUGH_VALIDATION = 16
# steps of the shortest trial, so that the first comparison (after 5 %) comes after more than one
_FEWEST_STEPS = 40
_MOST_EPOCHS = 20
# lengths are rounded up to this, as a reader would write them
_LENGTH_STEP = 64


def write_first_task(file: Path, *, model: str, train: Sequence[str], validation: str | None = None) -> FirstTaskFile:
    """Write a task file with comments for ``model`` and the rows of ``train``, and return what it says.

    Args:
        file: The file to write; it must not exist.
        model: A hub id or a directory. Paths start at the working directory, as a shell completes them.
        train: Files, directories or hub ids.
        validation: The same for the validation rows; None: a share of the others, or those of the directory.

    Raises:
        InputError: the file exists, or anything is wrong with model or rows.
    """
    _refuse_taken(file)
    config = check_checkpoint(find_model(model))
    rows = _rows(train, where="DATA")
    columns = _columns(rows)
    if validation is None:
        validation = _validation_of(train)
    formats = {detect_format(row.values) for row in rows}
    # a base model without a template needs one; this one has plain words, which every vocabulary can write
    is_chat = any(form is not None and form.is_chat for form in formats)
    # most rows decide: one that is different is a mistake in that row
    is_chat = is_chat or 2 * sum(map(_holds_messages, rows)) > len(rows)
    objective = _objective(rows, formats)
    needs_template = is_chat and not load_tokenizer(model).chat_template
    chat_template = _TEMPLATE if needs_template else None
    share = min(0.5, max(0.1, round(_ENOUGH_VALIDATION / len(rows), 2)))
    prompt_template = None if is_chat else separating_template(rows, columns=columns)
    dataset: dict[str, Any] = {
        "train": list(train),
        "validation": share if validation is None else validation,
        "max_length": config.max_position_embeddings,
        **({"columns": columns} if columns else {}),
        **({"chat_template": chat_template} if chat_template else {}),
        **({"prompt_template": prompt_template} if prompt_template else {}),
        # running text can be cut anywhere; a prompt and its answer belong together
        **({"on_long_rows": "split"} if formats == {DataFormat.TEXT} else {}),
    }
    # read as the task will read them: every problem of the rows shows now
    data = {"model_name_or_path": model, "dataset": dataset, "objective": objective.name}
    task = task_from_mapping(data, base_directory=Path.cwd(), name="cohort init")
    # there is no task file yet that could say to skip rows
    inputs = read_inputs(task, can_skip=False)
    new = _chosen(file, model=model, train=train, dataset=dataset, objective=objective, inputs=inputs)
    # before it is written: it must be a task that runs
    document = parse_yaml(new.text(), where=Place(file=str(file)))
    assert document is not None, "a task file holds keys"
    task_from_mapping(document.data, base_directory=file.absolute().parent, name=str(file), lines=document.lines)
    write_text(file, new.text())
    return new


def _chosen(
    file: Path,
    *,
    model: str,
    train: Sequence[str],
    dataset: Mapping[str, Any],
    objective: ObjectiveDeclaration,
    inputs: TaskInputs,
) -> FirstTaskFile:
    validation = dataset["validation"]
    report, context = inputs.data.report, inputs.config.max_position_embeddings
    # both answers of a pair are rows
    num_rows = report.num_train_rows // objective.group_size
    compares = objective.reads is not RowReading.ANSWERS
    fewest = 1 if objective.compares_batch is None else 2
    batch_sizes = [size for size in _BATCH_SIZES if size * 20 <= num_rows] or [fewest]
    epochs = min(_MOST_EPOCHS, max(1 if compares else 3, math.ceil(_FEWEST_STEPS * batch_sizes[-1] / num_rows)))
    longest = report.lengths.maximum
    long = f"the longest row has {longest}"
    if longest > context:
        what, kind = ("split", ProblemKind.SPLIT) if "on_long_rows" in dataset else ("dropped", ProblemKind.TOO_LONG)
        rows = f"{counted(report.counts.get(kind, 0), 'longer row')} of {report.lengths.num_rows}"
        long = f"the model's context; {rows} {what}"
    widest = _widest(inputs.config)
    (example,) = render_examples(
        inputs.data.train, tokenizer=inputs.tokenizer, count=1, group_size=objective.group_size
    )[:1]
    return FirstTaskFile(
        name=file.name,
        model=_from(file, model),
        train=[_from(file, entry) for entry in train],
        validation=validation if isinstance(validation, float) else _from(file, validation),
        columns=dataset.get("columns", {}),
        chat_template=dataset.get("chat_template"),
        prompt_template=dataset.get("prompt_template"),
        example=format_example(example).partition("\n")[2],
        on_long_rows=dataset["on_long_rows"] if longest > context and "on_long_rows" in dataset else "drop",
        data_note=f"{counted(report.num_rows_read, 'row')}, {report.format}",
        max_length=min(context, math.ceil(longest / _LENGTH_STEP) * _LENGTH_STEP),
        length_note=long,
        num_train_epochs=epochs,
        objective=objective,
        betas=_BETAS if compares else (),
        learning_rates=_PREFERENCE_RATES if compares else _LEARNING_RATES,
        ranks=[r for r in _RANKS if r <= widest] or [widest],
        batch_sizes=batch_sizes,
        can_answer=any(inputs.data.validation.prompts),
    )


def _objective(rows: Sequence[RawRow], formats: Collection[DataFormat | None]) -> ObjectiveDeclaration:
    """Return what rows of these formats are for."""
    if formats == {DataFormat.PREFERENCE}:
        return proposed_for(RowReading.PAIRS)
    labelled = detect_format(rows[0].values, reads=RowReading.LABELS) is DataFormat.UNPAIRED_PREFERENCE
    # a label that is no switch may be a class
    is_labelled = labelled and all(isinstance(row.values.get("label"), bool) for row in rows)
    return proposed_for(RowReading.LABELS if is_labelled else RowReading.ANSWERS)


def _holds_messages(row: RawRow) -> bool:
    """Return whether an answer that is compared, or its prompt, is a list of messages."""
    names = ("prompt", "chosen", "rejected", "completion", "preferred_output", "preferred_completion")
    return any(isinstance(row.values.get(name), list) for name in names)


def _widest(config: DecoderConfig) -> int:
    """Return the largest rank that an adapted layer itself can have."""
    return max(min(shape) for shape in linear_shapes(config).values())


def _refuse_taken(file: Path) -> None:
    if (unusual := unusual_path(file)) is not None:
        found, hint = unusual.found, "Name another file with -o FILE."
    elif file.exists():
        found, hint = "a file that exists", "Name another with -o FILE, or move this one away."
    elif not file.absolute().parent.is_dir():
        found, hint = "a file in a directory that does not exist", "Make the directory, or name another file."
    else:
        return
    raise InputError(
        Problem(where=f"-o {file!s:.120}", found=found, allowed="a new file in a directory there is", hint=hint)
    )


def _rows(train: Sequence[str], *, where: str) -> list[RawRow]:
    """Return the rows that can be read; those that cannot are reported when the task reads them."""
    settings = DatasetSettings(train=list(train))
    log = ProblemLog()
    sources = find_sources(settings, log=log)
    if problems := log.of(ProblemKind.INPUT):
        raise InputError([Problem(where=where, found=p.found, allowed=p.allowed, hint=p.hint) for p in problems])
    rows = [
        row
        for entry in sources
        for row in entry.rows or read_source(entry.source, split="train", where=settings.key("train"), log=log).rows
    ]
    if not rows and (problems := log.of(*ProblemKind)):
        raise InputError(problems)
    return rows


def _columns(rows: Sequence[RawRow]) -> dict[str, str]:
    """Return the columns that hold prompt and completion where no format is recognised; nothing where one is.

    Raises:
        InputError: no column is called like an answer.
    """
    if any(detect_format(row.values) is not None for row in rows):
        return {}
    columns = guess_columns(rows[0].values)
    if columns is None:
        raise InputError(
            Problem(
                where=rows[0].where,
                found=f"the keys {', '.join(rows[0].values)}",
                allowed="messages, conversations, instruction and output, prompt and completion, or text",
                hint="Rename the columns, or write the task file by hand with columns: {prompt: ..., completion: ...}.",
            )
        )
    return columns


def _validation_of(train: Sequence[str]) -> str | None:
    """Return the directory of the training rows if it has a file of validation rows, too."""
    if len(train) != 1 or not Path(train[0]).expanduser().is_dir():
        return None
    log = ProblemLog()
    where = DatasetSettings(train=train[0]).where
    files = [
        resolve_sources(train[0], split=split, base_directory=None, where=where, log=log)
        for split in ("train", "validation")
    ]
    return train[0] if files[1] and files[0] != files[1] and not log.entries else None


def _from(file: Path, written: str) -> str:
    """Return how the task file names a path that was typed in the working directory; a hub id stays as it is."""
    path = Path(written).expanduser()
    if not path.exists() or path.is_absolute():
        return written
    return os.path.relpath(path.resolve(), file.absolute().parent.resolve())


def separating_template(rows: Sequence[RawRow], *, columns: Mapping[str, str]) -> str | None:
    """Return the prompt with a line break where most rows have nothing between prompt and completion; else None.

    A prompt and its completion are joined as they are, as TRL does: the author of a file of prompts has ended them as
    they should end. Columns such as ``question`` and ``answer`` were not meant to be joined, and `4 + 4?8` is no text
    that a base model has seen: its tokens may merge across the border, and a server would have to send the same.

    Args:
        columns: Our column names and the file's, where they differ.
    """
    texts = [pair for row in rows if (pair := _pair(row, columns=columns)) is not None]
    glued = sum(1 for prompt, completion in texts if _is_glued(prompt, completion))
    if 2 * glued <= len(texts):
        return None
    name = columns.get("prompt", "prompt")
    # a column with other characters cannot be named in a template, but our name for it can
    is_plain = name.replace("_", "").replace("-", "").replace(" ", "").isalnum()
    return f"{{{name if is_plain else 'prompt'}}}\n"


def _pair(row: RawRow, *, columns: Mapping[str, str]) -> tuple[str, str] | None:
    values = renamed(row.values, columns=columns)
    if detect_format(values) is not DataFormat.PROMPT_COMPLETION:
        return None
    prompt, completion = values["prompt"], values["completion"]
    if not isinstance(prompt, str) or not isinstance(completion, str) or not prompt or not completion:
        return None
    return prompt, completion


def _is_glued(prompt: str, completion: str) -> bool:
    return not prompt[-1].isspace() and not completion[0].isspace() and prompt[-1] not in _LEADING_MARKS
