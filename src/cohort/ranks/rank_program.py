"""The program of a rank: ``python -m cohort.ranks.rank_program DESCRIPTOR``.

It builds what the setup from rank 0 describes and carries out calls until the connection closes. It decides nothing:
rank 0 alone knows the run, or the requests that are served.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from cohort.core.errors import CohortError
from cohort.core.process.lost_readers import outliving_readers
from cohort.core.process.parent_death import die_with_parent
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Reply, Tenant, portable
from cohort.ranks.rank_link import Release, Sent
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

__all__ = ["Served", "ignore_signals", "main", "serve_setup"]


class Served:
    """What a rank serves with, and the rows that it keeps by their numbers."""

    def __init__(self, tenant: Tenant, *, rows: Sequence[TokenisedRows] = ()) -> None:
        """Serve with ``tenant``."""
        self.tenant, self._rows = tenant, dict(enumerate(rows))

    def reply(self, sent: Sent) -> Reply:
        """Carry out a call; return what came of it."""
        value, error, began = None, None, time.monotonic()
        self._rows.update(sent.new_rows)
        try:
            rows = {name: self._rows[number] for name, number in sent.rows.items()}
            value = replace(sent.call, arguments={**sent.call.arguments, **rows}).carried_out_by(self.tenant)
        except Exception as raised:
            error = raised
        return Reply(
            value=value,
            error=None if error is None else portable(error),
            cause=portable(error.__cause__) if error is not None and isinstance(error.__cause__, Exception) else None,
            standing=self.tenant.standing(),
            seconds=time.monotonic() - began,
        )


def serve(channel: Channel, served: Served) -> None:
    """Carry out calls until rank 0 releases this rank or closes the connection."""
    # a closed connection is how rank 0 says that it is done, or that it is dead
    with contextlib.suppress(EOFError, OSError):
        while not isinstance(sent := channel.receive(), Release):
            reply = served.reply(sent)
            if sent.call.is_answered:
                channel.send(reply)
            elif reply.error is not None:
                _end_with(channel, reply)


def serve_setup(channel: Channel, setup: RankSetup) -> None:
    """Build what rank 0 asks for, answer whether that was possible, and serve with it."""
    torch.set_num_threads(setup.threads)
    if setup.device == "cuda":
        if setup.is_in_group:
            # messages that wait for a neighbour must not stand in one hardware queue with those it waits for
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        # every GPU stays visible, so that each process can open the memory of the others; this one is the default
        torch.cuda.set_device(setup.torch_device)
    try:
        served = Served(setup.build(), rows=setup.rows)
    except (CohortError, torch.OutOfMemoryError, RuntimeError, OSError) as error:
        channel.send(Reply(error=portable(error)))
        return
    channel.send(Reply())
    try:
        serve(channel, served)
    finally:
        if setup.is_in_group:
            # NCCL does not end a group while there are CUDA graphs with its messages
            with contextlib.suppress(RuntimeError):
                served.tenant.make_room()


def ignore_signals() -> None:
    """Leave signals to end to rank 0: all processes get them, and it needs this one to save a run or end requests."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Serve as a rank until rank 0 is gone."""
    ignore_signals()
    # a closed connection is noticed between two calls only, and a GPU must be free once rank 0 is gone
    die_with_parent()
    channel = Channel(Connection(int(sys.argv[1])))
    # a user's functions may print here, too
    with outliving_readers(), contextlib.suppress(EOFError, OSError):
        serve_setup(channel, channel.receive())
    _leave(0)


def _end_with(channel: Channel, reply: Reply) -> None:
    """End after a call that has no answer: the others wait for this rank in the middle of a pass."""
    traceback.print_exception(reply.error)
    channel.send(reply)
    _leave(1)


def _leave(status: int) -> None:
    # without the ends of libraries: CUDA's warns of memory that rank 0 has not let go of, and a group whose other
    # ranks are gone would hang at shutdown
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
