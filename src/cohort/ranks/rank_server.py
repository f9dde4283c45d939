"""The program of a rank: ``python -m cohort.ranks.rank_server DESCRIPTOR``.

It builds its executor from what rank 0 sends and carries out commands until the connection closes. It decides nothing:
rank 0 alone knows the run.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from cohort.core.cache_directory import default_cache_directory
from cohort.core.errors import CohortError
from cohort.core.parent_death import die_with_parent
from cohort.models.weights import load_decoder
from cohort.ranks.commands import Command, Rank, RankSetup, Release, Reply
from cohort.ranks.group_member import build_member
from cohort.ranks.rank_executor import RankExecutor
from cohort.ranks.step_window import StepWindow
from cohort.ranks.transport import Channel
from cohort.training.optimizers import optimizer_for

__all__ = ["build_rank", "main", "serve", "serve_setup"]


def build_rank(setup: RankSetup) -> Rank:
    """Load the frozen model and allocate the bank, exactly as rank 0 has them."""
    device = torch.device(setup.device)
    if device.type == "cuda":
        if setup.group is not None:
            # messages that wait for a neighbour must not stand in one hardware queue with those it waits for
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        # every GPU stays visible, so that each process can open the memory of the others; this one is the default
        torch.cuda.set_device(setup.rank if setup.gpu is None else setup.gpu)
        if setup.memory_limit_bytes is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, setup.memory_limit_bytes / total), device)
    torch.set_num_threads(setup.threads)
    if setup.group is not None:
        return Rank(executor=build_member(setup, device=device), rows={0: setup.train_rows})
    decoder = load_decoder(
        setup.model_directory,
        dtype=setup.dtype,
        device=device,
        streaming=setup.weights.streaming(device, rank=setup.rank),
        weight_format=setup.quantization,
        cache_directory=default_cache_directory(),
        room_bytes=setup.room_bytes,
    )
    executor = RankExecutor(
        decoder,
        target_linears=setup.target_linears,
        train_rows=setup.train_rows,
        settings=setup.settings,
        device=device,
        compute_dtype=decoder.dtype,
        memory_limit_bytes=setup.memory_limit_bytes,
        optimizer=optimizer_for(setup.optimizers),
    )
    return Rank(executor=executor, rows={0: setup.train_rows})


def serve(channel: Channel, rank: Rank) -> None:
    """Carry out commands until rank 0 releases this rank or closes the connection."""
    # a closed connection is how rank 0 says that it is done, or that it is dead
    with contextlib.suppress(EOFError, OSError):
        while True:
            command: Command | Release = channel.receive()
            if isinstance(command, Release):
                return
            channel.send(_reply(command, rank))


def serve_setup(channel: Channel, setup: RankSetup) -> None:
    """Build the executor that rank 0 asks for, answer whether that was possible, and serve with it."""
    try:
        rank = build_rank(setup)
    except (CohortError, torch.OutOfMemoryError, RuntimeError, OSError) as error:
        channel.send(Reply(error=portable(error)))
        return
    channel.send(Reply())
    try:
        serve(channel, rank)
    finally:
        if setup.group is not None:
            # NCCL does not end a group while there are CUDA graphs with its messages
            with contextlib.suppress(RuntimeError):
                rank.executor.make_room()


def _reply(command: Command, rank: Rank) -> Reply:
    value, error, began = None, None, time.monotonic()
    try:
        value = command.run(rank)
    except Exception as raised:
        error = raised
    if isinstance(value, StepWindow) and value.error is not None:
        value = replace(value, error=portable(value.error))
    executor = rank.executor
    return Reply(
        value=value,
        error=None if error is None else portable(error),
        cause=portable(error.__cause__) if error is not None and isinstance(error.__cause__, Exception) else None,
        shortages=executor.take_shortages(),
        token_budgets=executor.token_budgets,
        num_recomputed=executor.num_recomputed,
        seconds=time.monotonic() - began,
    )


def portable(error: Exception) -> Exception:
    """Return ``error``, or its words where it cannot travel."""
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve as a rank until rank 0 is gone."""
    # a terminal and a supervisor tell all processes to stop; rank 0 saves the run first, for which it needs this one
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # a closed connection is noticed between two commands only, and a GPU must be free once rank 0 is gone
    die_with_parent()
    channel = Channel(Connection(int(sys.argv[1])))
    with contextlib.suppress(EOFError, OSError):
        setup: RankSetup = channel.receive()
        serve_setup(channel, setup)
    # without the ends of libraries: CUDA's warns of memory that rank 0 has not let go of, and the run is over
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
