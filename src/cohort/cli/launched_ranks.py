"""Processes that torchrun has started run the same command: rank 0 carries it out, and the others serve it."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cohort.cli.exits import EXIT_FAILED

if TYPE_CHECKING:
    from cohort.core.errors import Problem
    from cohort.engine.train.open_run import RunOptions
    from cohort.ranks.launch.launched import LaunchedRanks
    from cohort.tasks.task_file import TaskFile

__all__ = [
    "code_digest",
    "launched_ranks",
    "most_losses",
    "numbers_of_processes",
    "options_with",
    "refuse_other_number",
    "refuse_own_recovery",
    "refuse_queue",
]

_OPTION = "torchrun --nproc-per-node"


@contextmanager
def launched_ranks() -> Iterator[LaunchedRanks | None]:
    """Yield the other ranks of a launch by torchrun, connected; None where torchrun did not start this process.

    In any other rank than rank 0, serve until rank 0 ends and exit.

    Raises:
        InputError: the hosts differ in versions or GPUs.
        RunStateError: a rank, or rank 0, cannot be reached.
        typer.Exit: this process was a rank that served.
    """
    # most runs are no launch: they do not load torch to learn that
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield None
        return
    from cohort.ranks.launch.launch_place import LaunchPlace
    from cohort.ranks.launch.launched import gather_ranks
    from cohort.ranks.rank_process import RANK_ENVIRONMENT

    # before the first call of CUDA, which reads the last; as ranks that rank 0 starts have it
    os.environ.update(RANK_ENVIRONMENT)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    place = LaunchPlace.of(os.environ)
    assert place is not None, "torchrun's variables are there"
    own = {"versions": _versions(), "gpu": _gpu(place.local_rank), "store": _store()}
    if place.rank:
        raise typer.Exit(_serve(place, own))
    ranks = gather_ranks(place, **own)
    try:
        with numbers_of_processes():
            yield ranks
        ranks.dismiss()
    finally:
        ranks.close()


@contextmanager
def numbers_of_processes() -> Iterator[None]:
    """Let errors about the number of GPUs name torchrun's option, which decides it, in place of the task's key."""
    from cohort.core.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.about([_of_torchrun(problem) for problem in error.problems]) from error


def _of_torchrun(problem: Problem) -> Problem:
    from cohort.core.source_location import Place

    if problem.where.key != ("num_gpus",):
        return problem
    hint = f"Start as many processes as are allowed: {_OPTION} N."
    return replace(problem, where=Place(option=_OPTION), hint=hint)


def refuse_other_number(task: TaskFile, ranks: LaunchedRanks | None) -> None:
    """Refuse a task that asks for another number of GPUs than torchrun has started processes.

    Raises:
        InputError: it does.
    """
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place

    if ranks is None or task.num_gpus in ("auto", 0, ranks.place.num_ranks):
        return
    count = ranks.place.num_ranks
    raise InputError(
        Problem(
            # without the key: here the file may be what is wrong
            where=Place(text=str(task.where("num_gpus"))),
            found=f"{task.num_gpus}, but torchrun has started {count} process{'es' * (count > 1)}",
            allowed=f"auto | {count}: a process for each GPU",
            hint="Write num_gpus: auto, or another --nproc-per-node.",
        )
    )


def refuse_own_recovery(ranks: LaunchedRanks | None, on_lost_gpu: str) -> None:
    """Refuse to start lost processes here where torchrun starts all of them.

    Raises:
        InputError: that was asked for.
    """
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place

    if ranks is None or on_lost_gpu != "resume":
        return
    raise InputError(
        Problem(
            where=Place(option="command line --on-lost-gpu"),
            found="resume, in a process that torchrun has started",
            allowed="stop: torchrun starts lost processes again, and the run continues",
            hint="Leave it out, and write torchrun --max-restarts 3.",
        )
    )


def refuse_queue(ranks: LaunchedRanks | None, queue: Path) -> None:
    """Refuse a queue, which starts its workers itself.

    Raises:
        InputError: torchrun started this process.
    """
    from cohort.core.errors import InputError, Problem

    if ranks is not None:
        raise InputError(
            Problem(
                where=f"torchrun: {queue}",
                found="a queue",
                allowed="a run: a queue starts the processes of its tasks itself",
                hint=f"Leave torchrun out: cohort resume {queue}.",
            )
        )


def most_losses(on_lost_gpu: str) -> int:
    """Return how many lost processes in a row end a run, by what is to be done when one is lost."""
    from cohort.engine.recovery import MOST_LOSSES

    return MOST_LOSSES if on_lost_gpu == "resume" else 1


def options_with(ranks: LaunchedRanks | None) -> RunOptions | None:
    """Return how a run is carried out with ``ranks``."""
    from cohort.engine.train.open_run import RunOptions

    return None if ranks is None else RunOptions(num_ranks=ranks.place.num_ranks, launched=ranks)


def _serve(place: Any, own: dict[str, Any]) -> int:
    from cohort.ranks.group_meeting import end_in_group
    from cohort.ranks.launch.launched import connect_to_first
    from cohort.ranks.launch.launched_server import serve_first

    # torchrun and terminals tell all processes to stop; rank 0 saves the run first, for which it needs this one
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = 0 if serve_first(connect_to_first(place, **own), place) else EXIT_FAILED
    end_in_group(status)
    return status


def _versions() -> dict[str, str]:
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
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://")))
    return store


def code_digest() -> str:
    """Return twelve hex digits of the SHA-256 of the package's source files, in the order of their paths."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
