"""A finished run becomes a model: its adapter and results are stored, then the job succeeds in one transaction."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.jobs.auto_search import chosen_hyperparameters
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.run_outcome import RunOutcome, read_outcome
from cohort.store.enums import JobKind, JobStatus
from cohort.store.errors import UnknownIdError
from cohort.store.jobs.claims import Claim, NewCheckpoint, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store

__all__ = ["RESULTS_PURPOSE", "model_name", "publish", "remove_unused_results"]

RESULTS_PURPOSE = "fine-tune-results"
_MOST_RESULTS_BYTES = 1 << 30
_LETTERS_OF_ID = 12


def model_name(job: Job, *, organisation: str) -> str:
    """Return the name under which a job's adapter is served."""
    return f"ft:{job.base_model}:{organisation}:{job.suffix or ''}:{job.id.partition('-')[2][:_LETTERS_OF_ID]}"


def publish(store: Store, claim: Claim, job: Job, *, folder: JobFolder, run: Path, organisation: str) -> Job:
    """Store the result of a run that is done, and let the job succeed; after a kill, nothing is stored twice.

    Raises:
        RunStateError: the run has no result.
        LeaseLostError: another runner has the job, or it was cancelled.
        StorageFull, StoreUnavailable: try again later.
    """
    outcome = read_outcome(run)
    results = _results_file(store, job, folder, outcome)
    blob = _stored_adapter(store, claim, folder, outcome, note="adapter_blob")
    name = model_name(job, organisation=organisation)
    # a name of its own, with bytes of its own: either can be deleted and the other stays
    checkpoint = _stored_adapter(store, claim, folder, outcome, note="checkpoint_blob")
    return store.claims.update(
        claim,
        status=JobStatus.SUCCEEDED,
        events=[
            NewEvent(message=f"New fine-tuned model created: {name}"),
            NewEvent(message="The job has successfully completed"),
        ],
        usage=outcome.usage,
        checkpoint=NewCheckpoint(
            step_number=outcome.step,
            model=f"{name}:ckpt-step-{outcome.step}",
            metrics=dict(outcome.metrics),
            blob=checkpoint,
        ),
        model=NewModel(id=name, blob=blob),
        hyperparameters=_hyperparameters(job, outcome),
        trained_tokens=outcome.trained_tokens,
        result_files=[results],
    )


def remove_unused_results(project: ProjectStore, job: Job, folder: JobFolder) -> None:
    """Remove the results file of a job that was cancelled, or taken by another node, before it got the file."""
    noted = folder.notes.get("results_file")
    if isinstance(noted, str) and noted not in job.result_files:
        with suppress(UnknownIdError):
            project.files.delete(noted)


def _stored_adapter(store: Store, claim: Claim, folder: JobFolder, outcome: RunOutcome, *, note: str) -> str:
    """Return the name of a blob of the adapter: that of an earlier attempt, unless it was taken for abandoned."""
    noted = folder.notes.get(note)
    if isinstance(noted, str) and store.blobs.waits_for_owner(noted):
        return noted
    name = store.blobs.write_folder(claim.project_id, outcome.adapter).name
    folder.note(**{note: name})
    return name


def _hyperparameters(job: Job, outcome: RunOutcome) -> dict[str, Any]:
    if job.kind is JobKind.TASK:
        return dict(outcome.parameters)
    asked = CreateJob.model_validate(dict(job.request))
    return chosen_hyperparameters(
        asked.asked, method=asked.method_type, trial=outcome.parameters, epochs=outcome.epochs
    )


def _results_file(store: Store, job: Job, folder: JobFolder, outcome: RunOutcome) -> str:
    """Return the id of the job's results file, stored once."""
    noted = folder.notes.get("results_file")
    if isinstance(noted, str):
        return noted
    files, filename = store.project(job.project_id).files, f"{job.id}-results.csv"
    found = None
    if folder.notes.get("is_publishing"):
        # killed after the file was stored and before that was noted
        page = files.list(purpose=RESULTS_PURPOSE)
        found = next((file.id for file in page.items if file.filename == filename), None)
    if found is None:
        folder.note(is_publishing=True)
        added = files.add(
            [outcome.results],
            filename=filename,
            purpose=RESULTS_PURPOSE,
            max_bytes=_MOST_RESULTS_BYTES,
            asks_quota=False,
        )
        found = added.id
    folder.note(results_file=found)
    return found
