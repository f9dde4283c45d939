"""``cohort dashboard``: pages over the runs of a folder, for browsers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption
from cohort.cli.arguments.server_options import ApiKeysOption, HostOption, given_keys, require_packages
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.core.errors import Problem

__all__ = ["dashboard"]

_NEEDED = ("starlette", "uvicorn")
_Runs = Annotated[
    Path,
    typer.Argument(metavar="RUNS_DIR", help="A folder of runs, a queue's directory, or one run.", show_default=False),
]
_Port = Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 takes a free port.")]
_Control = Annotated[
    bool, typer.Option("--control", help="Let the pages stop, resume, keep, clone and add trials, and stop runs.")
]


def dashboard(
    runs_dir: _Runs,
    control: _Control = False,
    host: HostOption = "127.0.0.1",
    port: _Port = 8090,
    api_key: ApiKeysOption = None,
    debug: DebugOption = False,
) -> None:
    """Show the runs of a folder in a browser, also while they train.

    Pages only show unless --control is given. Needs the extra `serve`; the pages ask no other machine for anything.
    """
    with exits(debug=debug):
        require_packages("cohort dashboard", _NEEDED)
        keys = given_keys(api_key)
        if (problem := _problem(runs_dir, host=host, keys=keys)) is not None:
            from cohort.core.errors import InputError

            raise InputError(problem)
        from cohort.service.dashboard.server import run_dashboard
        from cohort.service.dashboard.settings import DashboardSettings
        from cohort.service.listening import listen

        settings = DashboardSettings(root=runs_dir, can_control=control, api_keys=keys, host=host)
        with listen(host, port) as listener:
            run_dashboard(settings, listener=listener, on_ready=lambda at: _report(runs_dir, at, control=control))


def _report(runs_dir: Path, address: str, *, control: bool) -> None:
    how = "shows and changes" if control else "shows"
    print(f"{address} {how} the runs in {runs_dir} (Ctrl-C ends it)", flush=True)


def _problem(runs_dir: Path, *, host: str, keys: tuple[str, ...]) -> Problem | None:
    from cohort.core.errors import Problem
    from cohort.core.place import Place
    from cohort.service.dashboard.settings import is_loopback

    if not runs_dir.is_dir():
        return Problem(
            where=str(runs_dir),
            found="a file" if runs_dir.exists() else "nothing",
            allowed="a folder of runs, a queue's directory, or one run",
            hint="Name the folder that `cohort tune -o` writes to, or the one above it.",
        )
    if not is_loopback(host) and not keys:
        return Problem(
            where=Place(option="command line --host"),
            found=f"{host} without a key: every machine that reaches it could read the runs",
            allowed="an address of this machine alone, or a key",
            hint="Write --api-key KEY or set COHORT_API_KEY; or keep 127.0.0.1 and forward the port with ssh -L.",
        )
    return None
