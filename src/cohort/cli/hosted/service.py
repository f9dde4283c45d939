"""``cohort service``: files, fine-tuning jobs, models and answers for many tenants, from one command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, report_note
from cohort.cli.arguments.server_options import require_packages
from cohort.cli.arguments.service_options import keep_from_others
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.service.hosting.opening import OpenService
    from cohort.service.hosting.service_file import BaseSection, ServiceFile

__all__ = ["service"]

_NEEDED = ("fastapi", "prometheus_client", "uvicorn", "python_multipart", "sqlalchemy", "alembic", "fsspec")


def service(
    file: Annotated[
        Path | None, typer.Argument(metavar="[service.yaml]", help="What to start; none: defaults for everything.")
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option("--base", metavar="[NAME=]MODEL", help="A base model; can be repeated.  [default: the file's]"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where everything lies.  [default: cohort-service]")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 takes a free port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Train on the CPU, on N workers.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Train on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Extra `ray`."
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Start a fine-tuning service with OpenAI's API. Needs the extra `service`.

    Clients upload files, create jobs, and ask the models that come out of them. Without a file it keeps everything in
    one folder, trains on this machine, and prints the first key once.
    """
    with exits(debug=debug):
        require_packages("cohort service", _NEEDED, extra="service")
        from cohort.models.source import find_model
        from cohort.service.hosting.json_logs import log_as_json
        from cohort.service.hosting.opening import open_service
        from cohort.service.hosting.server import run_service
        from cohort.service.listening import listen

        settings = _settings(file, folder=folder, host=host, port=port, workers=workers, ray=ray)
        if settings.workers.ray is not None:
            require_packages("cohort service --ray", ("ray",), extra="ray")
        bases = _bases(settings, base or [])
        settings = _with_shared_base(settings, bases)
        log_as_json()
        # the address before the models, which take long to load
        with listen(settings.host, settings.port) as listener:
            # models of a hub go into a cache that others may share
            for each in bases:
                find_model(each.model)
            keep_from_others(Path(settings.folder))
            opened = open_service(settings, bases=bases)
            is_whole = run_service(opened, listener=listener, on_ready=lambda address: _report(opened, address))
    print("stopped" if is_whole else "stopped; some requests were cut off", file=sys.stderr)


def _settings(
    file: Path | None,
    *,
    folder: Path | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    ray: str | None,
) -> ServiceFile:
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place
    from cohort.service.hosting.service_file import default_service, load_service_file

    settings = default_service() if file is None else load_service_file(file)
    asked: dict[str, object] = {} if workers is None else {"cpu": workers, "gpus": None}
    if ray is not None:
        asked["ray"] = ray
    if settings.workers.share_base and (ray is not None or (workers or 1) > 1):
        raise InputError(
            Problem(
                where=Place(option="command line --ray" if ray is not None else "command line --workers"),
                found=f"share_base: true in {file}, by which jobs train in the server's own process",
                allowed="one of the two",
                hint="Write share_base: false, or leave the option out.",
            )
        )
    given = {
        "folder": None if folder is None else str(folder.absolute()),
        "host": host,
        "port": port,
        "workers": settings.workers.model_copy(update=asked) if asked else None,
    }
    return settings.model_copy(update={name: value for name, value in given.items() if value is not None})


def _bases(settings: ServiceFile, given: list[str]) -> tuple[BaseSection, ...]:
    from cohort.cli.demo import quickstart_folder
    from cohort.service.hosting.service_file import BaseSection

    if given:
        pairs = [text.partition("=") for text in given]
        return tuple(BaseSection(name=name, model=model if separator else name) for name, separator, model in pairs)
    if settings.bases:
        return tuple(settings.bases)
    return (BaseSection(name="quickstart", model=str(quickstart_folder() / "base_model")),)


def _with_shared_base(settings: ServiceFile, bases: tuple[BaseSection, ...]) -> ServiceFile:
    """Return the settings where one base trains and answers, if nothing was said of where jobs train."""
    workers = settings.workers
    says_where = {"gpus", "cpu", "ray", "share_base"} & workers.model_fields_set or workers.cpu is not None
    if says_where or len(bases) > 1:
        return settings
    return settings.model_copy(update={"workers": workers.model_copy(update={"share_base": True})})


def _report(opened: OpenService, address: str) -> None:
    from cohort.service.hosting.opening import first_key

    for note in opened.notes:
        report_note(note)
    print(f"base models: {', '.join(opened.served.bases)}")
    print(f"everything is in {opened.file.folder}")
    # made as it is shown: a start that ends before would leave a key that was never shown
    if (key := first_key(opened.store, owner=f"{opened.file.node}-{os.getpid()}")) is not None:
        print(f"the first key, shown once: {key}", flush=True)
    print(f"serving on {address}/v1", flush=True)
