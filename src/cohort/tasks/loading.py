"""Reads a task file: what a user submits, validated as a whole, with every problem named at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.input_values.nearest_value import nearest_file
from cohort.core.source_location import KeyPath, Place, dotted
from cohort.core.unusual_path import unusual_path
from cohort.data.files.given_rows import GivenRows
from cohort.tasks.functions import locate_functions
from cohort.tasks.other_names import ACCEPTED, use_own_names
from cohort.tasks.overrides import Override, apply_overrides, parse_overrides
from cohort.tasks.paths import from_working_directory, locate_adapters, locate_data, locate_model
from cohort.tasks.problems import problems_from
from cohort.tasks.sections.objective_checks import objective_refusals
from cohort.tasks.sections.reward_checks import reward_refusals
from cohort.tasks.sections.schedule_checks import schedule_refusals
from cohort.tasks.task_file import TaskFile
from cohort.tasks.weighted_files import split_weights
from cohort.tasks.yaml_lines import TaskOrigin, parse_yaml

__all__ = ["TaskFile", "TaskFileError", "load_task", "task_from_mapping", "task_json_schema", "task_lines"]


class TaskFileError(InputError):
    """A task file has problems of its own.

    Attributes:
        rest: The task without the wrong keys, so that the files it names can be checked as well; None if too little
            is left.
        are_rows_readable: Whether ``dataset`` and its files have no problem; the model may have one. Rows that are read
            with half of their settings would show problems that do not exist.
    """

    def __init__(self, problems: Sequence[Problem], *, rest: TaskFile | None, are_rows_readable: bool) -> None:
        super().__init__(problems)
        self.rest = rest
        self.are_rows_readable = are_rows_readable


def _contradiction(other: KeyPath, key: KeyPath, origin: TaskOrigin) -> Problem:
    return Problem(
        where=origin.where(other),
        found=f"{dotted(other)} and {dotted(key)}",
        allowed="one of the two, which mean the same",
        hint=f"Remove {dotted(other)}.",
    )


def _cross_problems(task: TaskFile, overrides: Sequence[Override], origin: TaskOrigin) -> list[Problem]:
    """Return problems between sections, which need a task that is valid in itself."""
    problems = []
    # max_steps ends every trial at the same step, so trials of different epochs would be the same trial
    if task.training.max_steps is not None and "num_train_epochs" in task.search.space:
        problems.append(
            Problem(
                where=origin.where("search.space.num_train_epochs"),
                found="num_train_epochs in search.space with training.max_steps",
                allowed="one of the two",
                hint="Remove training.max_steps, or num_train_epochs from search.space.",
            )
        )
    blocks = task.lora.use_bdlora
    if blocks is not None and "nblocks" not in (*blocks.model_fields_set, *task.search.space):
        problems.append(
            Problem(
                where=origin.where("lora.use_bdlora"),
                found="use_bdlora without nblocks",
                allowed="nblocks in it, or in search.space",
                hint="Write use_bdlora: {nblocks: 4}, with the tensor parallel degree it will be served at.",
            )
        )
    problems += [
        replace(refusal.problem(Place()), where=origin.where(refusal.at))
        for refusal in (*objective_refusals(task), *reward_refusals(task), *schedule_refusals(task))
    ]
    # A file may say both, since the space is documented to win. An option that has no effect is a mistake: it was typed
    # to change something.
    for override in overrides:
        section, key = (override.path[0], override.path[-1])
        if section in ("lora", "training", "objective") and key in task.search.space:
            problems.append(
                Problem(
                    where=origin.where(override.path),
                    found=f"{dotted(override.path)}, which search.space.{key} overrides",
                    allowed=f"--search.space.{key} VALUE",
                    hint=f"Write --search.space.{key} instead.",
                )
            )
    return problems


def task_from_mapping(
    data: Mapping[str, Any],
    *,
    base_directory: Path,
    name: str = "task",
    lines: Mapping[KeyPath, int] | None = None,
    overrides: Sequence[Override] = (),
    given: Mapping[str, GivenRows] | None = None,
) -> TaskFile:
    """Return the validated task that plain data describes.

    Args:
        data: What a task file holds.
        base_directory: What relative paths are relative to.
        name: How messages name the source.
        lines: Line of each key, where there are lines.
        overrides: Keys set on the command line.
        given: Rows given from Python, by split; ``data`` holds the place where a run will keep them.

    Raises:
        TaskFileError: every problem there is, in the order of the lines.
    """
    all_lines = dict(lines or {})
    written = dict(data)
    # before the overrides are set: they replace a value of the file under whatever name it has there
    contradictions = use_own_names(written, all_lines)
    written = apply_overrides(written, overrides)
    options = {override.path: override.option for override in overrides}
    origin = TaskOrigin(name=name, lines=all_lines, overrides=options)
    # on the data as written, and before validation stops at a wrong type: all problems come in one message
    problems = [
        *(_contradiction(other, key, origin) for other, key in contradictions),
        # first of those that read paths: it leaves a list of them
        *split_weights(written, origin),
        *locate_model(written, base_directory, origin),
        *locate_adapters(written, base_directory, origin),
        *locate_data(written, base_directory, origin, given=given or {}),
        *locate_functions(written, base_directory, origin),
    ]
    placed: list[tuple[int, Problem]] = [(problem.where.line or 0, problem) for problem in problems]
    wrong: list[KeyPath] = []
    rest: TaskFile | None
    try:
        task = rest = TaskFile.model_validate(written)
    except ValidationError as error:
        for path, problem in problems_from(error, model=TaskFile, origin=origin):
            placed.append((origin.line(path) or 0, problem))
            wrong.append(path)
        rest = _without(written, wrong)
    else:
        task._origin, task._given = origin, dict(given or {})
        placed += [(problem.where.line or 0, problem) for problem in _cross_problems(task, overrides, origin)]
    if placed:
        # the files that the valid keys name are checked as well, under the same lines
        if rest is not None:
            rest._origin = origin
        of_model = origin.where("model_name_or_path")
        raise TaskFileError(
            # in the order of the file, so that it can be corrected from top to bottom
            [problem for _, problem in sorted(placed, key=lambda entry: entry[0])],
            rest=rest,
            are_rows_readable=all(problem.where == of_model for problem in problems)
            and not any(map(_changes_reading, wrong)),
        )
    return task


def _changes_reading(key: KeyPath) -> bool:
    """Return whether a value decides how rows are read: the objective says what it reads of them."""
    return key[0] == "dataset" or key in (("objective",), ("objective", "type"))


def _copied(value: Any) -> Any:
    """Return a copy of the dicts and lists. What else a caller gave stays: not everything can be copied."""
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return [_copied(entry) for entry in value] if isinstance(value, list) else value


def _without(written: Mapping[str, Any], wrong: Sequence[KeyPath]) -> TaskFile | None:
    """Return the task with the wrong keys left out, if that is one."""
    # a copy, because the caller still reports what was written
    left = _copied(dict(written))
    for path in wrong:
        section: Any = left
        # a mistake inside a value (one entry of a list) removes the whole key: only sections are entered
        for part, after in zip(path, (*path[1:], None), strict=True):
            inner = section.get(part)
            if after is None or not isinstance(inner, dict) or after not in inner:
                section.pop(part, None)
                break
            section = inner
    try:
        return TaskFile.model_validate(left)
    except ValidationError:
        return None


_SUFFIXES_OF_ROWS = (".jsonl", ".csv", ".parquet")


def _read_text(path: Path) -> str:
    def problem(found: str, hint: str) -> InputError:
        return InputError(Problem(where=Place(file=str(path)), found=found, allowed="a task file (YAML)", hint=hint))

    if (unusual := unusual_path(path)) is not None:
        # opened, a pipe would wait for a writer and a device such as /dev/zero would never end
        raise problem(unusual.found, unusual.hint)
    if path.is_file() and path.suffix.lower() in _SUFFIXES_OF_ROWS:
        raise problem("a file of rows, by its name", "Name the task file; it names the rows.")
    try:
        # some editors put a byte-order mark first, which would become part of the first key
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = nearest_file(path.name, [p.name for p in path.parent.glob("*.y*ml")])
        raise problem("no such file", f"Did you mean {near}?" if near else "Check the path.") from None
    except IsADirectoryError:
        raise problem("a directory", "Name the task file in it.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise problem(f"bytes that are not UTF-8 (line {line})", "Save the file as UTF-8 text.") from None
    except OSError as error:
        raise problem(f"a file that cannot be read ({error.strerror})", "Check its permissions.") from None


@checks_arguments("load_task")
def load_task(path: str | Path, overrides: Sequence[str] = ()) -> TaskFile:
    """Return the task of a file, with ``--KEY VALUE`` arguments applied.

    Args:
        path: The task file. Relative paths in it start at its directory.
        overrides: Command-line arguments, e.g. ``["--training.seed", "3", "--search.trials=10"]``; relative paths in
            them start at the working directory, as a shell completes them.

    Raises:
        InputError: every problem there is.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        found, hint = repr(path)[:60], "Write for example load_task('task.yaml')."
        raise InputError(Problem(where="load_task: path", found=found, allowed="the path of a task file", hint=hint))
    path = Path(path)
    text = _read_text(path)
    file = Place(file=str(path))
    document = parse_yaml(text, where=file)
    if document is None or not isinstance(document.data, dict):
        data = None if document is None else document.data
        found, hint = f"the text {str(data)[:60]!r}", "Write `key: value` lines, such as model_name_or_path: ..."
        if data is None:
            found, hint = "an empty file", "Write at least model_name_or_path and dataset with train."
        elif isinstance(data, list):
            found, hint = f"a list of {len(data)} entries", "Write one task per file, without the leading dashes."
        raise InputError(Problem(where=file.at_line(1), found=found, allowed="one task (keys and values)", hint=hint))
    parsed = [from_working_directory(override) for override in parse_overrides(overrides, model=TaskFile)]
    return task_from_mapping(
        document.data, base_directory=path.parent, name=str(path), lines=document.lines, overrides=parsed
    )


def task_lines(path: Path) -> dict[KeyPath, int]:
    """Return the line of each key of a task file under the names of ours; nothing where it cannot be read."""
    try:
        document = parse_yaml(_read_text(path), where=Place(file=str(path)))
    except InputError:
        return {}
    lines = {} if document is None else dict(document.lines)
    for written, key in ACCEPTED.items():
        if written in lines:
            lines.setdefault(key, lines[written])
    return lines


def task_json_schema() -> dict[str, Any]:
    """Return the JSON schema of a task file, for editors and services."""
    schema = TaskFile.model_json_schema(mode="validation")
    # pydantic does not see the names that are replaced before validation
    for written, key in ACCEPTED.items():
        sections = [schema if len(path) == 1 else _definition(schema, str(path[0])) for path in (written, key)]
        described = {**sections[1]["properties"][key[-1]], "description": f"alias of {dotted(key)}"}
        sections[0]["properties"][written[-1]] = {name: described[name] for name in described if name != "default"}
    schema["properties"]["early_exit"] = {"anyOf": [{"const": "none"}, schema["properties"]["early_exit"]]}
    schema["required"] = [name for name in schema["required"] if name != "model_name_or_path"]
    schema["anyOf"] = [{"required": ["model_name_or_path"]}, {"required": ["base_model"]}]
    return schema


def _definition(schema: dict[str, Any], section: str) -> dict[str, Any]:
    model = TaskFile.model_fields[section].annotation
    assert isinstance(model, type), "a section is a model"
    found: dict[str, Any] = schema["$defs"][model.__name__]
    return found
