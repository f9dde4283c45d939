"""A task of a client, checked as far as that needs no rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.service.access.refusals import ServiceError
from cohort.service.jobs.client_limits import require_harmless
from cohort.store.errors import UnknownIdError
from cohort.store.store import ProjectStore
from cohort.tasks.problems import problems_from
from cohort.tasks.task_file import TaskFile
from cohort.tasks.yaml_lines import TaskOrigin

__all__ = ["base_of_task", "files_of_task", "require_task"]

_SPLITS = ("train", "validation", "test")
_MOST_FILES = 64


def base_of_task(document: Mapping[str, Any]) -> str:
    """Return the base model that a task names.

    Raises:
        ServiceError: it names none.
    """
    name = document.get("model_name_or_path", document.get("base_model"))
    if not isinstance(name, str):
        raise ServiceError("task.model_name_or_path is missing: name a base model of GET /v1/models.", param="task")
    return name


def files_of_task(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the ids of files by split.

    Raises:
        ServiceError: ``dataset`` has something else.
    """
    dataset = document.get("dataset")
    if not isinstance(dataset, Mapping) or "train" not in dataset:
        raise ServiceError("task.dataset.train is missing: write the id of an uploaded file.", param="task.dataset")
    found: dict[str, list[str]] = {}
    for split in _SPLITS:
        written = dataset.get(split)
        if written is None or (split == "validation" and isinstance(written, int | float)):
            continue
        ids = [written] if isinstance(written, str) else written
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
            text = f"task.dataset.{split} must be the id of an uploaded file, or a list of ids."
            raise ServiceError(text, param=f"task.dataset.{split}")
        found[split] = ids
    if sum(map(len, found.values())) > _MOST_FILES:
        raise ServiceError(f"A task may name at most {_MOST_FILES} files.", param="task.dataset")
    return found


def require_task(document: Mapping[str, Any], own: ProjectStore, *, bases: Collection[str]) -> None:
    """Check a task before it is accepted.

    Raises:
        ServiceError: its base model or a file is unknown.
        InputError: its keys and values; all that is wrong with them.
    """
    name = base_of_task(document)
    if name not in bases:
        text = f"Model {name[:200]!r} is not available; use one of {', '.join(sorted(bases))}."
        raise ServiceError(text, status=404, param="task.model_name_or_path", code="model_not_available")
    require_harmless(document, where=("task",))
    for split, ids in files_of_task(document).items():
        for file_id in ids:
            try:
                own.files.get(file_id)
            except UnknownIdError:
                text = f"invalid task.dataset.{split}: {file_id[:200]!r} does not exist"
                raise ServiceError(text, param=f"task.dataset.{split}", code="invalid_file_id") from None
    try:
        TaskFile.model_validate(dict(document))
    except ValidationError as error:
        origin = TaskOrigin(name="task")
        raise InputError([found for _, found in problems_from(error, model=TaskFile, origin=origin)]) from None
    except InputError:
        raise
    except (TypeError, AttributeError, RecursionError) as error:
        # a value of a shape that no reader of a task file expects
        problem = Problem(
            where=Place(key=("task",)),
            found=f"values of another shape ({type(error).__name__})",
            allowed="a task as its file has it",
            hint="Check it with `cohort check`.",
        )
        raise InputError(problem) from None
