"""A task in Python: the task file's keys as arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place
from cohort.tasks.early_exit_section import early_exit_section
from cohort.tasks.loading import TaskFile, task_from_mapping
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["Task"]

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Task:
    """What a user submits: base model, data and search space. Its result is the best adapter.

    The arguments are the keys of the task file, checked as it is; relative paths start at the working directory.

    Attributes:
        name: How messages and run directories name it.
        file: The validated task, every default filled in.
    """

    def __init__(
        self,
        *,
        model: str | os.PathLike[str],
        dataset: Files | Mapping[str, Any],
        search_space: Mapping[str, Any] | None = None,
        name: str | None = None,
        objective: str = "sft",
        lora: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        early_exit: EarlyExitSettings | Mapping[str, Any] | Literal["none"] | None = None,
        priority: int = 0,
        num_gpus: int | Literal["auto"] = "auto",
        report_to: str | Sequence[str] | None = None,
    ) -> None:
        """Check the task.

        Args:
            model: ``model_name_or_path``, a hub id or a local directory.
            dataset: ``dataset.train`` (files, a directory or a hub id), or the whole section.
            search_space: ``search.space``: a list, a range ``{"min": ..., "max": ..., "log": True}``, one value, or a
                multiple of r such as ``"2r"``, by hyperparameter.
            name: The name of the task and of its run directory; the stem of its first training file when None.
            objective, lora, training, evaluation, search, memory, early_exit, priority, num_gpus, report_to: As in the
                task file, sections as mappings.

        Raises:
            InputError: every problem of the task there is.
        """
        # first, because the other problems are reported under this name
        if name is not None:
            _require_folder_name(name)
        section = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
        data: dict[str, Any] = {
            "model_name_or_path": os.fspath(model) if isinstance(model, os.PathLike) else model,
            "dataset": {key: _plain_paths(value) for key, value in section.items()},
            "objective": objective,
            "priority": priority,
            "num_gpus": num_gpus,
        }
        sections = {"lora": lora, "training": training, "evaluation": evaluation, "search": search, "memory": memory}
        data |= {key: dict(value) for key, value in sections.items() if value is not None}
        # left out rather than written as its default: whether the task chose its own early exit must stay visible
        if early_exit is not None:
            data["early_exit"] = early_exit.as_keys() if isinstance(early_exit, EarlyExitSettings) else early_exit
        if report_to is not None:
            data["report_to"] = report_to if isinstance(report_to, str) else list(report_to)
        shown = "Task" if name is None else f"Task {name!r}"
        if search_space is not None:
            if search is not None and "space" in search:
                where, found = Place(file=shown, key=("search_space",)), "search_space and search['space']"
                raise InputError(Problem(where=where, found=found, allowed="one of the two", hint="Remove one."))
            data["search"] = {**data.get("search", {}), "space": dict(search_space)}
        self.file: TaskFile = task_from_mapping(data, base_directory=Path.cwd(), name=shown)
        # the data may be given as "..", whose stem says nothing: the normalised path has the directory's name
        self.name = name or Path(os.path.normpath(self.file.dataset.train[0])).stem or "task"

    def with_early_exit(self, settings: EarlyExitSettings) -> TaskFile:
        """Return the validated task with ``settings``, unless it has an ``early_exit`` of its own."""
        # the engine's early exit is a default for tasks that chose none
        if "early_exit" in self.file.model_fields_set:
            return self.file
        section = early_exit_section(settings.as_keys())
        return self.file.model_copy(update={"early_exit": section})

    def __repr__(self) -> str:
        return f"Task(name={self.name!r}, model={self.file.model_name_or_path!r})"


def _require_folder_name(name: str) -> None:
    """Refuse a name that would put the run directory somewhere else than directly in its parent."""
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise InputError(
            Problem(
                where=Place(file="Task", key=("name",)),
                found=repr(name),
                allowed="the name of a folder, without / and \\: it names the run directory",
                hint="Write a plain name, and choose the place with Engine.run(run_directory=...).",
            )
        )


def _plain_paths(value: Any) -> Any:
    """Return paths among the values as text, as a task file has them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain_paths(entry) for entry in value]
    return value
