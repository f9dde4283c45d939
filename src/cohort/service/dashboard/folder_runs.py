"""The door to the runs of a folder: who sees the pages sees them all, and changes them where the server lets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.service.dashboard.controls import act, preview, read_request, stop_run
from cohort.service.dashboard.json_answers import NotAllowedError, json_body
from cohort.service.dashboard.runs_folder import RunsFolder

__all__ = ["FolderRuns"]


class FolderRuns:
    """Finds runs by their path in a folder."""

    def __init__(self, folder: RunsFolder, *, can_control: bool) -> None:
        self._folder, self._can_control = folder, can_control

    async def run(self, request: Request) -> RunDirectory:
        return self._folder.run(request.query_params.get("run", "."))

    async def facts(self, request: Request) -> Mapping[str, Any]:
        del request
        return {"may_change": self._can_control}

    def shown(self, view: Mapping[str, Any]) -> Mapping[str, Any]:
        return view

    def words(self, error: CohortError | str) -> str:
        return str(error)

    async def preview(self, request: Request) -> Any:
        directory, body = await self._controlled(request)
        if body.get("kind") == "stop-run":
            return await run_in_threadpool(stop_run, directory, is_preview=True)
        return await run_in_threadpool(preview, directory, read_request(body))

    async def ask(self, request: Request) -> Any:
        directory, body = await self._controlled(request)
        if body.get("kind") == "stop-run":
            return await run_in_threadpool(stop_run, directory, is_preview=False)
        return await run_in_threadpool(act, directory, read_request(body))

    async def _controlled(self, request: Request) -> tuple[RunDirectory, dict[str, Any]]:
        if not self._can_control:
            raise NotAllowedError("this dashboard only shows; start it with --control to change runs")
        return await self.run(request), await json_body(request)
