"""Before a job can train, its files are fetched and checked, and its task is made. Errors are for the client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.core.durable_files import atomic_file
from cohort.core.errors import CohortError, InputError
from cohort.core.units import counted
from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.jobs.client_limits import require_harmless
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_task import BaseForJobs, JobRows, base_keys, job_document, share_aside
from cohort.service.jobs.row_checks import CheckedRows, CheckLimits, RowsRefusedError, check_rows
from cohort.store.enums import JobKind
from cohort.store.errors import UnknownIdError
from cohort.store.records import Job
from cohort.tasks.loading import TaskFile, task_from_mapping

__all__ = ["JobRefusedError", "client_words", "prepare_job", "task_of_document"]

Content = Callable[[str], Iterator[bytes]]
_SPLITS = ("train", "validation", "test")


class JobRefusedError(CohortError):
    """A job cannot train as it is.

    Attributes:
        code, param: As of the job's ``error``.
    """

    def __init__(self, message: str, *, code: str, param: str | None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


def prepare_job(job: Job, folder: JobFolder, *, base: BaseForJobs, content: Content, limits: CheckLimits) -> None:
    """Fetch and check the files of a job, and keep its task in ``folder``.

    Args:
        content: Returns the bytes of a file by its id.

    Raises:
        JobRefusedError: a file is gone or has wrong rows, or the hyperparameters do not go together.
        StoreUnavailable, StorageFullError: try again later.
    """
    if job.kind is JobKind.TASK:
        document = _task_document(job, folder, base=base, content=content, limits=limits)
    else:
        document = _fine_tuning_document(job, folder, base=base, content=content, limits=limits)
    try:
        task_of_document(document, name=job.id)
    except InputError as error:
        text = client_words(str(error), job=job, folder=folder, base=base)
        raise JobRefusedError(text, code="invalid_hyperparameters", param="hyperparameters") from None
    folder.keep_task(document)


def task_of_document(document: Mapping[str, Any], *, name: str) -> TaskFile:
    """Return the task of a document, whose paths are absolute.

    Raises:
        InputError: everything that is wrong with it.
    """
    return task_from_mapping(document, base_directory=Path("/"), name=name)


def client_words(text: str, *, job: Job, folder: JobFolder, base: BaseForJobs) -> str:
    """Return an error's text with ids in the place of the server's paths."""
    for path, file_id in _file_ids(job, folder).items():
        text = text.replace(path, file_id)
    return text.replace(str(folder.path), job.id).replace(base.path, base.name)


def _file_ids(job: Job, folder: JobFolder) -> dict[str, str]:
    """Return the ids of a job's files by the paths at which its rows lie."""
    if job.kind is JobKind.FINE_TUNING:
        own = {"train": job.training_file, "validation": job.validation_file}
        return {str(folder.path / f"{split}.jsonl"): name or "the file" for split, name in own.items()}
    return {
        str(path): file_id
        for split, written in job.request.get("task", {}).get("dataset", {}).items()
        if split in _SPLITS
        for path, file_id in _split_files(split, written, folder)
    }


def _split_files(split: str, written: Any, folder: JobFolder) -> list[tuple[Path, str]]:
    """Return where the files of a task's split lie, with their ids; none where it is a share."""
    if written is None or isinstance(written, int | float):
        return []
    ids = [written] if isinstance(written, str) else written
    return [(folder.path / f"{split}-{number}.jsonl", file_id) for number, file_id in enumerate(ids)]


def _fine_tuning_document(
    job: Job, folder: JobFolder, *, base: BaseForJobs, content: Content, limits: CheckLimits
) -> dict[str, Any]:
    asked = CreateJob.model_validate(dict(job.request))
    train = _checked(
        asked.training_file, "training_file", folder.path / "train.jsonl", asked.method_type, content, limits
    )
    validation = None
    if asked.validation_file is None:
        _require_rows_to_compare_by(train.num_rows, share=share_aside(asked), file_id=asked.training_file)
    else:
        path = folder.path / "validation.jsonl"
        _checked(asked.validation_file, "validation_file", path, asked.method_type, content, limits)
        validation = path
    path = folder.path / "train.jsonl"
    rows = JobRows(train=path, num_rows=train.num_rows, is_chat=train.is_chat, validation=validation)
    return job_document(asked, rows=rows, base=base, seed=job.seed)


def _require_rows_to_compare_by(num_rows: int, *, share: float, file_id: str) -> None:
    # other shares are refused with the task
    if not 0 < share < 1 or 0 < round(share * num_rows) < num_rows:
        return
    missing = "to compare by" if round(share * num_rows) == 0 else "to train on"
    leaves = "leaves" if num_rows == 1 else "leave"
    enough = math.ceil(round(1 / min(share, 1 - share), 6))
    text = f"{counted(num_rows, 'row')} {leaves} none {missing}: add rows ({enough} or more), or send validation_file"
    raise _refused(f"{file_id}: {text}", param="training_file")


def _task_document(
    job: Job, folder: JobFolder, *, base: BaseForJobs, content: Content, limits: CheckLimits
) -> dict[str, Any]:
    document = dict(job.request["task"])
    require_harmless(document)
    dataset = dict(document["dataset"])
    reads, is_chat = _reads(document), False
    for split in _SPLITS:
        files = _split_files(split, dataset.get(split), folder)
        for path, file_id in files:
            is_chat |= _checked(file_id, f"task.dataset.{split}", path, reads, content, limits).is_chat
        if files:
            dataset[split] = [str(path) for path, _ in files]
    if base.chat_template is not None and is_chat:
        dataset["chat_template"] = base.chat_template
    dataset.setdefault("max_length", base.max_length)
    document.pop("base_model", None)
    return {**document, "dataset": dataset, **base_keys(base)}


def _reads(document: Mapping[str, Any]) -> str:
    objective = document.get("objective", "sft")
    # what the rows must be follows from the objective, which the whole task's check names where it is wrong
    probe = {"model_name_or_path": "m", "dataset": {"train": "x"}, "objective": objective}
    try:
        return TaskFile.model_validate(probe).objective.reads.value
    except ValueError:
        return "answers"


def _checked(file_id: str, param: str, path: Path, method: str, content: Content, limits: CheckLimits) -> CheckedRows:
    """Fetch a file and return what its rows are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not path.is_file():
            with atomic_file(path) as partial, partial.open("wb") as stream:
                for chunk in content(file_id):
                    stream.write(chunk)
        return check_rows(path, method=method, shown=file_id, limits=limits)
    except UnknownIdError:
        text = f"{file_id}: the file does not exist any more; upload it again and create another job"
    except RowsRefusedError as error:
        text = str(error)
    raise _refused(text, param=param)


def _refused(text: str, *, param: str) -> JobRefusedError:
    kind = "training" if param == "training_file" else "validation" if param == "validation_file" else "data"
    text = f"The job failed due to an invalid {kind} file. {text}"
    return JobRefusedError(text, code=f"invalid_{kind}_file", param=param)
