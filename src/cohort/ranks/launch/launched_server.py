"""The side of a rank that torchrun has started: it serves rank 0, one setup after another, until it is dismissed."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import torch

from cohort.core.errors import RunStateError
from cohort.ranks.calls import Reply
from cohort.ranks.group_meeting import leave_group
from cohort.ranks.launch.connection_watch import ConnectionWatch
from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.launch.launched import Goodbye
from cohort.ranks.rank_link import Release
from cohort.ranks.rank_program import serve_setup
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

__all__ = ["serve_first"]


def serve_first(channel: Channel, place: LaunchPlace) -> bool:
    """Serve rank 0; return whether it dismissed this rank. False: it is gone, and its run has not ended as it should.

    A rank that has ended well is not started again by torchrun, so one whose run did not end must not seem to.
    """
    while True:
        try:
            message: RankSetup | Release | Goodbye = channel.receive()
            if isinstance(message, Goodbye):
                return True
            if isinstance(message, Release):
                # from an executor that could not be built
                continue
            if missing := _missing(message, place):
                channel.send(Reply(error=RunStateError(missing)))
                continue
            _serve(channel, replace(message, gpu=place.local_rank))
        except (EOFError, OSError):
            return False
        # the next executor finds the memory that this one had
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _serve(channel: Channel, setup: RankSetup) -> None:
    if not setup.is_in_group:
        leave_group()
        serve_setup(channel, setup)
        return
    # a rank that waits for others of its group cannot see that rank 0 has given the group up
    with ConnectionWatch(channel.fileno()):
        # that of the executor before: the last one's is left by the end of the process
        leave_group()
        serve_setup(channel, setup)


def _missing(setup: RankSetup, place: LaunchPlace) -> str:
    if Path(setup.model_directory).is_dir():
        return ""
    return (
        f"rank {place.rank} (host {place.node}) finds no base model at {setup.model_directory}; it must lie at the "
        "same path on every host"
    )
