"""Processes that torchrun has started run the same command: rank 0 carries it out, and the others serve it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from cohort.cli.exits import EXIT_FAILED

if TYPE_CHECKING:
    from cohort.engine.train.open_run import RunOptions
    from cohort.parallel.launched import LaunchedRanks
    from cohort.tasks.task_file import TaskFile

__all__ = ["launched_ranks", "options_with", "refuse_other_number"]


@contextmanager
def launched_ranks() -> Iterator[LaunchedRanks | None]:
    """Yield the other ranks of a launch by torchrun, connected; None where torchrun did not start this process.

    In any other rank than rank 0, serve until rank 0 ends and exit.

    Raises:
        InputError: the hosts differ in versions or GPUs.
        RunStateError: a rank, or rank 0, cannot be reached.
        typer.Exit: this process was a rank that served.
    """
    # most runs are no launch, and need not load torch to learn it
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield None
        return
    from cohort.parallel.launch_place import LaunchPlace
    from cohort.parallel.launched import gather_ranks

    place = LaunchPlace.of(os.environ)
    assert place is not None, "torchrun's variables are there"
    own = {"versions": _versions(), "gpu": _gpu(place.local_rank), "store": _store()}
    if place.rank:
        raise typer.Exit(_serve(place, own))
    ranks = gather_ranks(place, **own)
    try:
        yield ranks
        ranks.dismiss()
    finally:
        ranks.close()


def refuse_other_number(task: TaskFile, ranks: LaunchedRanks | None) -> None:
    """Refuse a task that asks for another number of GPUs than torchrun has started processes.

    Raises:
        InputError: it does.
    """
    from cohort.core.errors import InputError, Problem

    if ranks is None or task.num_gpus in ("auto", 0, ranks.place.num_ranks):
        return
    count = ranks.place.num_ranks
    raise InputError(
        Problem(
            where=task.where("num_gpus"),
            found=f"{task.num_gpus}, but torchrun has started {count} process{'es' * (count > 1)}",
            allowed=f"auto | {count}: a process for each GPU",
            hint="Write num_gpus: auto, or another --nproc-per-node.",
        )
    )


def options_with(ranks: LaunchedRanks | None) -> RunOptions | None:
    """Return how a run is carried out with ``ranks``."""
    from cohort.engine.train.open_run import RunOptions

    return None if ranks is None else RunOptions(num_ranks=ranks.place.num_ranks)


def _serve(place: Any, own: dict[str, Any]) -> int:
    from cohort.parallel.launched import connect_to_first
    from cohort.parallel.launched_server import serve_first

    return 0 if serve_first(connect_to_first(place, **own), place) else EXIT_FAILED


def _versions() -> dict[str, str]:
    from cohort.core.code_digest import code_digest
    from cohort.machine.machine import package_versions
    from cohort.version import __version__

    # what computes the bits of a step; messages are pickled, so that the same version with other code is not enough
    found = package_versions()
    own = {"cohort": f"{__version__} (code {code_digest()})"}
    return own | {name: found[name] for name in ("torch", "triton") if name in found}


def _gpu(local_rank: int) -> str:
    import torch

    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        return ""
    # first of all: other calls would take memory of the first GPU
    torch.cuda.set_device(local_rank)
    return torch.cuda.get_device_name(local_rank)


def _store() -> Any:
    import torch.distributed as dist

    store, _, _ = next(iter(dist.rendezvous("env://")))
    return store
