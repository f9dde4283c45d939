"""The door to the runs of a service's projects: a tenant's own, and for administrators those of each project."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.service.access.error_answers import as_refusal
from cohort.service.dashboard.controls import WAIT_SECONDS, preview, read_request, told
from cohort.service.dashboard.json_answers import NotAllowedError, json_body
from cohort.service.dashboard.run_pages import RunFeeds
from cohort.service.dashboard.runs_folder import UnknownRunError
from cohort.service.dashboard.runs_view import RunRows
from cohort.service.tasks.run_places import absence, find_run, run_places
from cohort.service.tasks.trial_changes import change_trial
from cohort.service.tenant_pages.job_views import JOB_CHANGES, event_view, job_view, label_of
from cohort.service.tenant_pages.key_sessions import caller_of_page, is_admin
from cohort.store.enums import KeyScope
from cohort.store.errors import StoreError, UnknownIdError
from cohort.store.records import Job
from cohort.store.store import Store
from cohort.store.tenants.keys import Caller

__all__ = ["AbsentRunError", "ProjectRuns"]

_MOST_LISTED = 100
_MOST_EVENTS = 40
_MOST_NAME = 200
# places of the server, which no client needs
_OF_THE_SERVER = ("directory", "holder", "folder", "model")
_RESUMED_BY = "the server that goes on with the job"


class AbsentRunError(CohortError):
    """The job is the viewer's to see, but its run directory is not here."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A job that a request names, and whether its sender may change it."""

    job: Job
    may_change: bool


class ProjectRuns:
    """Finds runs by the ids of their jobs.

    Names of runs are ids of jobs of the viewer's project, and for administrators ``PROJECT/JOB`` as well. A job of
    another project gets the same error as an id that does not exist.
    """

    def __init__(self, store: Store, *, nodes: Path, feeds: RunFeeds, most: int) -> None:
        """Take what knows the jobs and where their runs are.

        Args:
            nodes: The folder of all nodes that this process sees.
            most: Runs whose rows are kept.
        """
        self._store, self._nodes, self._feeds = store, nodes, feeds
        self._rows = RunRows(most=most)

    # ---- one run

    async def run(self, request: Request) -> RunDirectory:
        asked = await self._asked(request)
        found, absent = await asyncio.to_thread(self._place, asked.job)
        if found is None:
            raise AbsentRunError(absent)
        return RunDirectory(found)

    async def facts(self, request: Request) -> Mapping[str, Any]:
        asked = await self._asked(request)
        job = asked.job
        return {"may_change": asked.may_change, "label": label_of(job), "base_model": job.base_model}

    def shown(self, view: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**view, **{name: "" for name in _OF_THE_SERVER if name in view}}

    def words(self, error: CohortError | str) -> str:
        if isinstance(error, StoreError) and not isinstance(error, UnknownIdError):
            # its own words name the database
            return str(as_refusal(error))
        return str(error).replace(str(self._nodes.absolute()), "").replace(str(self._nodes), "")

    async def preview(self, request: Request) -> Any:
        _, body = await self._changed(request)
        change = JOB_CHANGES.get(str(body.get("kind")))
        if change is not None:
            return {"asked": change.action, "does": change.does, "undo": change.undo, "when": change.when}
        run = await self.run(request)
        return await asyncio.to_thread(preview, run, read_request(body), resumed_by=_RESUMED_BY)

    async def ask(self, request: Request) -> Any:
        asked, body = await self._changed(request)
        job, actor = asked.job, f"key {caller_of_page(request).key.id}, from the pages"
        change = JOB_CHANGES.get(str(body.get("kind")))
        if change is not None:
            jobs = self._store.project(job.project_id).jobs
            changed = await asyncio.to_thread(change.act, jobs, job.id, actor=actor)
            return {"text": f"{label_of(job)} is {changed.status}.", "is_taken_up": True}
        run, wanted = await self.run(request), read_request(body)

        def hand_in() -> Any:
            asked = change_trial(self._store, job, wanted, run=run.root, actor=actor, wait_seconds=WAIT_SECONDS)
            return told(asked, request=replace(wanted, who=actor), resumed_by=_RESUMED_BY)

        return await asyncio.to_thread(hand_in)

    # ---- what is not about one run's record

    async def job(self, request: Request) -> Any:
        """Return a job with its last events: what there is to see where its run is not here."""
        asked = await self._asked(request)
        job, may_change = asked.job, asked.may_change

        def found() -> Any:
            events = self._store.project(job.project_id).jobs.events(job.id, limit=_MOST_EVENTS).items
            _, absent = self._place(job)
            view = job_view(job, absent=absent, may_change=may_change)
            return {**view, "label": label_of(job), "events": event_view(events)}

        return await asyncio.to_thread(found)

    async def runs(self, request: Request) -> Any:
        """Return the newest jobs of a project, each with a row of its run where that is here."""
        caller = caller_of_page(request)
        project_id = request.query_params.get("project", "")[:_MOST_NAME] or caller.project.id
        if project_id != caller.project.id and not is_admin(caller):
            raise UnknownIdError("project", project_id)
        is_own, may_change = project_id == caller.project.id, _may_change(caller, project_id)

        def listed() -> tuple[Any, str, list[tuple[Job, Path | None, str]]]:
            project = self._store.tenants.project(project_id)
            page = self._store.project(project.id).jobs.list(limit=_MOST_LISTED)
            owners = {owner.id: owner.name for owner in self._store.tenants.organisations()}
            name = f"{owners.get(project.organisation_id, '')}/{project.name}"
            return page, name, [(job, *self._place(job)) for job in page.items]

        page, name, found = await asyncio.to_thread(listed)
        here = {str(run): self._feeds.of(RunDirectory(run)).followed for _, run, _ in found if run is not None}
        rows = {row["name"]: row for row in await self._rows.rows(here)}
        runs = []
        for job, run, absent in found:
            row = {} if run is None else dict(self.shown(rows[str(run)]))
            if "error" in row:
                row["error"] = self.words(row["error"])
            view = job_view(job, absent=absent, may_change=may_change)
            own_name = job.id if is_own else f"{project_id}/{job.id}"
            runs.append({**row, "name": own_name, "label": label_of(job), "job": view})
        return {"root": "", "queues": [], "project": name, "is_own": is_own, "has_more": page.has_more, "runs": runs}

    async def _asked(self, request: Request) -> _Asked:
        caller, name = caller_of_page(request), request.query_params.get("run", "")[:_MOST_NAME]
        project_id, slash, job_id = name.rpartition("/")
        project_id = project_id if slash else caller.project.id
        if project_id != caller.project.id and not is_admin(caller):
            raise _unknown(name)
        try:
            job = await asyncio.to_thread(self._store.project(project_id).jobs.get, job_id)
        except UnknownIdError:
            raise _unknown(name) from None
        return _Asked(job=job, may_change=_may_change(caller, project_id))

    async def _changed(self, request: Request) -> tuple[_Asked, dict[str, Any]]:
        asked = await self._asked(request)
        if not asked.may_change:
            raise NotAllowedError("only a key of the job's project with the scope tasks changes it")
        return asked, await json_body(request)

    def _place(self, job: Job) -> tuple[Path | None, str]:
        """Return the run directory of a job; else why there is none here."""
        places = run_places(self._nodes)
        found = find_run(job, places=places)
        return found, "" if found is not None else absence(job, places=places)


def _may_change(caller: Caller, project_id: str) -> bool:
    # as the API: administrators look at other projects and change nothing of theirs
    return caller.project.id == project_id and KeyScope.TASKS in caller.key.scopes


def _unknown(name: str) -> UnknownRunError:
    return UnknownRunError(f"there is no run {name!r} here")
