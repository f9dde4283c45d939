"""Reference log-probabilities of a task's answers: computed once for all trials, and kept on disk by content.

What a file is kept under is all that its numbers follow from: weights of the model and of the reference adapter,
precision and device, and the tokens themselves. So tasks on the same rows share it, whatever their files are called,
and a run that is resumed finds what it began with.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import remove_old_leftovers, write_bytes
from cohort.core.errors import InputError, Problem, SampleTooLargeError, StorageFullError
from cohort.core.units import counted
from cohort.data.loading import LoadedDataset
from cohort.data.packing import SlotSample
from cohort.data.tokenised import ReferenceFiles, Sample, TokenisedRows
from cohort.machine.machine import Machine, package_versions
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.prepare.adapters.start_checks import other_base_problem
from cohort.prepare.objectives import task_objective
from cohort.tasks.task_file import TaskFile
from cohort.training.micro_batches import sample_too_large
from cohort.training.reference.reference_adapter import read_reference_adapter
from cohort.training.reference.reference_logps import ANSWER_LOSS, answer_log_probs

if TYPE_CHECKING:
    # what is checked needs no executor, and loading one takes half as long as a check
    from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["Reference", "reference_adapter_hash", "reference_problems", "require_same_reference"]

# raise it with any change to how these numbers are computed
_CODE_VERSION = 1
_MOST_FILES = 64


def reference_adapter_hash(task: TaskFile) -> str | None:
    """Return the SHA-256 over the files of the reference adapter; None where the base model is the reference."""
    if task.objective.reference_adapter is None:
        return None
    return adapter_digest(Path(task.objective.reference_adapter))


def require_same_reference(task: TaskFile, *, recorded: str | None) -> None:
    """Refuse a reference adapter that is no longer what a run began with.

    Raises:
        InputError: its files are gone, or others.
    """
    try:
        found = reference_adapter_hash(task)
    except OSError as error:
        found = error.strerror or str(error)
    if found != recorded:
        raise InputError(
            Problem(
                where=task.where("objective.reference_adapter"),
                found=f"{task.objective.reference_adapter}: {str(found)[:40]}",
                allowed=f"the adapter that the run began with: SHA-256 {str(recorded)[:12]}",
                hint="Restore its files as they were.",
            )
        )


def reference_problems(task: TaskFile, config: DecoderConfig, *, model_directory: Path) -> list[Problem]:
    """Return why the reference adapter cannot be used on the task's base model; no weight of the model is read."""
    if task.objective.reference_adapter is None:
        return []
    directory = Path(task.objective.reference_adapter)
    where = task.where("objective.reference_adapter")
    try:
        read_reference_adapter(directory, config)
    except InputError as error:
        return [replace(problem, where=where, found=f"{problem.where}: {problem.found}") for problem in error.problems]
    problem = other_base_problem(task, "objective.reference_adapter", directory, model_directory=model_directory)
    return [] if problem is None else [problem]


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """An answer, and where it is among the rows."""

    rows: TokenisedRows
    row: int
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Asks a task's reference model for the log-probabilities of answers.

    Attributes:
        measured_by: The frozen model, or an executor that has it; an executor measures no reference adapter.
        model_hash: SHA-256 of the base model's files.
        token_budget: Most tokens of a pass.
        memory_limit_bytes: On a CPU, the most that model and passes may take together.
        num_shards: Ranks whose sums make a number, which round otherwise than one.
    """

    task: TaskFile
    measured_by: Decoder | TrainingExecutor
    machine: Machine
    model_hash: str
    token_budget: int
    memory_limit_bytes: int | None = None
    num_shards: int = 1

    def of_data(self, data: LoadedDataset, *, say: Callable[[str], None]) -> tuple[LoadedDataset, str | None]:
        """Return the rows of all splits with their reference log-probabilities, and a note; as they are without need.

        Raises:
            InputError: a row does not fit into memory.
        """
        if not task_objective(self.task).needs_reference:
            return data, None
        splits = [data.train, data.validation, data.all_validation, *([] if data.test is None else [data.test])]
        compared, note = self.of_rows(splits, say=say)
        # where all validation rows are evaluated, the two are one object
        by_identity = {id(rows): found for rows, found in zip(splits, compared, strict=True)}
        return replace(
            data,
            train=by_identity[id(data.train)],
            validation=by_identity[id(data.validation)],
            all_validation=by_identity[id(data.all_validation)],
            test=None if data.test is None else by_identity[id(data.test)],
        ), note

    def of_rows(
        self, splits: Sequence[TokenisedRows], *, say: Callable[[str], None] = lambda _: None
    ) -> tuple[list[TokenisedRows], str]:
        """Return rows with their reference log-probabilities, and where these are from."""
        samples: dict[bytes, _Answer] = {}
        for rows in splits:
            for row in range(len(rows)):
                sample = rows.sample(row)
                samples.setdefault(_content(sample), _Answer(rows=rows, row=row, sample=sample))
        path = _file(self._key(samples))
        whose = "the reference adapter" if self.task.objective.reference_adapter else "the base model"
        what = f"{counted(len(samples), 'answer')} by {whose}"
        found = _read(path, count=len(samples))
        if found is None and self.num_shards > 1:
            # those of one process are as good, and a run that moves from there keeps them
            found = _read(_file(replace(self, num_shards=1)._key(samples)), count=len(samples))
        if found is None:
            say(f"reference log-probabilities of {what}")
            found = self._computed(list(samples.values()))
            note = f"reference log-probabilities of {what}: computed once for all trials{_try_to_write(path, found)}"
        else:
            note = f"reference log-probabilities of {what}: from the cache"
        of = dict(zip(samples, found.tolist(), strict=True))
        adapter = self.task.objective.reference_adapter
        files = None if adapter is None else ReferenceFiles(adapter, adapter_digest(Path(adapter)))
        return [
            replace(
                rows,
                reference_logps=np.array([of[_content(rows.sample(row))] for row in range(len(rows))]),
                reference_adapter=files,
            )
            for rows in splits
        ], note

    def _key(self, contents: Sequence[bytes] | dict[bytes, Any]) -> str:
        parts = {
            "code": _CODE_VERSION,
            "model": self.model_hash,
            "adapter": reference_adapter_hash(self.task),
            "precision": self.machine.precision,
            "device": self.machine.device.type,
            "device_name": self.machine.device_name,
            "threads": self.machine.threads,
            "torch": dict(package_versions()).get("torch"),
        }
        if self.num_shards > 1:
            parts["shards"] = self.num_shards
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
        for content in contents:
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

    def _computed(self, answers: Sequence[_Answer]) -> NDArray[np.float64]:
        if isinstance(self.measured_by, Decoder):
            return self._by_model(self.measured_by, answers)
        return _by_executor(self.measured_by, answers)

    def _by_model(self, decoder: Decoder, answers: Sequence[_Answer]) -> NDArray[np.float64]:
        adapter = self.task.objective.reference_adapter
        place = {id(answer.sample): answer.rows.sources[answer.row] for answer in answers}

        def too_large(entry: SlotSample, words: str) -> SampleTooLargeError:
            return sample_too_large(entry.sample, words, whose="the reference model", source=place[id(entry.sample)])

        # the longest first: a shortage of memory shows at once, and rows of like length share passes
        ordered = sorted(range(len(answers)), key=lambda index: -len(answers[index].sample.tokens))
        log_probs = answer_log_probs(
            decoder,
            [answers[index].sample for index in ordered],
            token_budget=self.token_budget,
            too_large=too_large,
            adapter=None if adapter is None else read_reference_adapter(Path(adapter), decoder.config),
            memory_limit_bytes=self.memory_limit_bytes,
            numerics=self.machine.numerics,
        )
        found = np.empty(len(answers), dtype=np.float64)
        found[ordered] = log_probs
        return found


def _by_executor(executor: TrainingExecutor, answers: Sequence[_Answer]) -> NDArray[np.float64]:
    found = np.empty(len(answers), dtype=np.float64)
    places: dict[int, list[int]] = {}
    for place, answer in enumerate(answers):
        places.setdefault(id(answer.rows), []).append(place)
    for own in places.values():
        rows, row_ids = answers[own[0]].rows, [answers[place].row for place in own]
        found[own] = -np.array(executor.evaluate_base(rows=rows, row_ids=row_ids, objective=ANSWER_LOSS).terms)
    return found


def _content(sample: Sample) -> bytes:
    border = sample.answer_start.to_bytes(8, "little")
    return border + sample.tokens.tobytes() + sample.trained.tobytes()


def _file(key: str) -> Path:
    return default_cache_directory() / "reference_logps" / f"{key}.npy"


def _read(path: Path, *, count: int) -> NDArray[np.float64] | None:
    try:
        found: NDArray[np.float64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    # the newest files survive pruning; a read-only directory is never pruned
    with suppress(OSError):
        os.utime(path)
    return found if found.shape == (count,) and found.dtype == np.float64 else None


def _try_to_write(path: Path, found: NDArray[np.float64]) -> str:
    """Keep the numbers for other tasks; return what to add to the note where that was not possible."""
    stream = io.BytesIO()
    np.save(stream, found, allow_pickle=False)
    # the cache only saves time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, stream.getvalue())
        remove_old_leftovers(path.parent)
        ordered = sorted(path.parent.glob("*.npy"), key=lambda old: old.stat().st_mtime, reverse=True)
        for old in ordered[_MOST_FILES:]:
            old.unlink(missing_ok=True)
    except StorageFullError:
        return f"; not kept: no space left in {path.parent}"
    except OSError as error:
        return f"; not kept: {error.strerror or error} ({path.parent})"
    return ""
