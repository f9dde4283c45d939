"""``--publish``: a server hears of the best adapter when a sweep, or what was left of it, ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cohort.runs.directory import RunDirectory

__all__ = ["PublishAsOption", "PublishOption", "announcement"]

PublishOption = Annotated[
    str | None,
    typer.Option(
        "--publish",
        metavar="URL",
        help="A running `cohort serve` that answers with the best adapter once the sweep ends.",
        show_default=False,
    ),
]
PublishAsOption = Annotated[
    str | None,
    typer.Option("--publish-as", metavar="NAME", help="The adapter's name there.  [default: RUN_DIR's name]"),
]


def announcement(
    directory: RunDirectory, url: str | None, *, name: str | None, base_sha256: Callable[[], str | None]
) -> Callable[[], None]:
    """Return what tells the server at ``url`` of the best adapter, once it is known that the server will take it.

    Args:
        base_sha256: Returns the hash of the run's base model; called only where there is a server.
    """
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place

    if url is None:
        if name is None:
            return lambda: None
        raise InputError(
            Problem(
                where=Place(option="command line --publish-as"),
                found="--publish-as without --publish",
                allowed="--publish URL, the server",
                hint="Add --publish URL, or leave it out.",
            )
        )
    from cohort.integrations.publish import AdapterServer

    server, chosen = AdapterServer.at(url), name or directory.root.resolve().name
    server.check(chosen, directory.best, base_sha256=base_sha256())

    def announce() -> None:
        server.load(chosen, directory.best)
        print(f"{url} answers requests for {chosen} with it", file=sys.stderr)
        if (doubt := _doubt(directory)) is not None:
            print(f"warning: {doubt}; POST {url}/v1/unload_lora_adapter takes it back", file=sys.stderr)

    return announce


def _doubt(directory: RunDirectory) -> str | None:
    """Return why the adapter may be no better than the model that the server has anyway."""
    from cohort.runs.reader import RunReader
    from cohort.runs.results.results import read_results
    from cohort.runs.results.verdicts import no_gain

    with RunReader.open(directory.database) as reader:
        return no_gain(read_results(reader))
