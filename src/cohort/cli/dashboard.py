"""``cohort dashboard``: pages over the runs of a folder, for browsers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption
from cohort.cli.arguments.server_options import ApiKeysOption, HostOption, given_keys, require_packages, require_shown
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.service.dashboard.gpu_price import GpuPrice
    from cohort.service.dashboard.model_server import ModelServer

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
_Playground = Annotated[
    str | None,
    typer.Option(
        "--playground", metavar="URL", help="A running `cohort serve`, whose models answer prompts on a page."
    ),
]
_GpuHour = Annotated[
    str | None,
    typer.Option(
        "--gpu-hour",
        metavar='"AMOUNT CURRENCY"',
        help='What an hour of one GPU costs, such as "2.49 USD": shows money.',
    ),
]


def dashboard(
    runs_dir: _Runs,
    control: _Control = False,
    host: HostOption = "127.0.0.1",
    port: _Port = 8090,
    api_key: ApiKeysOption = None,
    playground: _Playground = None,
    gpu_hour: _GpuHour = None,
    debug: DebugOption = False,
) -> None:
    """Show the runs of a folder in a browser, also while they train.

    Pages only show unless --control is given. Needs the extra `serve`; the pages ask no other machine for anything.
    """
    with exits(debug=debug):
        require_packages("cohort dashboard", _NEEDED)
        keys = given_keys(api_key)
        require_shown(runs_dir, host=host, keys=keys)
        from cohort.service.dashboard.server import run_dashboard
        from cohort.service.dashboard.settings import DashboardSettings
        from cohort.service.listening import listen

        models = _model_server(playground, keys)
        settings = DashboardSettings(
            root=runs_dir,
            can_control=control,
            api_keys=keys,
            host=host,
            models=models,
            gpu_hour=_price(gpu_hour),
        )
        with listen(host, port) as listener:
            run_dashboard(settings, listener=listener, on_ready=lambda at: _report(runs_dir, at, control=control))


def _model_server(url: str | None, keys: tuple[str, ...]) -> ModelServer | None:
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place
    from cohort.service.dashboard.model_server import ModelServer

    if url is None:
        return None
    try:
        # one key opens both, where there is one
        return ModelServer(url, api_key=keys[0] if keys else None)
    except ValueError:
        raise InputError(
            Problem(
                where=Place(option="command line --playground"),
                found=url,
                allowed="an address of HTTP",
                hint="Write for example --playground http://127.0.0.1:8000, which `cohort serve` prints.",
            )
        ) from None


def _price(text: str | None) -> GpuPrice | None:
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place
    from cohort.service.dashboard.gpu_price import PRICE_ALLOWED, read_price

    if text is None:
        return None
    try:
        return read_price(text)
    except ValueError:
        hint = 'Write for example --gpu-hour "2.49 USD".'
        place = Place(option="command line --gpu-hour")
        raise InputError(Problem(where=place, found=text, allowed=PRICE_ALLOWED, hint=hint)) from None


def _report(runs_dir: Path, address: str, *, control: bool) -> None:
    how = "shows and changes" if control else "shows"
    print(f"{address} {how} the runs in {runs_dir} (Ctrl-C ends it)", flush=True)
