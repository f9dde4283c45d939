"""Starts the process of a rank and talks to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from cohort.core.errors import RankLostError
from cohort.ranks.rank_link import GO_ON, RankLink
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

__all__ = ["RANK_ENVIRONMENT", "RankProcess"]

# a rank that was told to end, or whose connection is closed, ends after the call it is at
_PATIENCE_SECONDS = 5.0
RANK_ENVIRONMENT = {
    # multicast hangs on some hosts, and nothing here needs it
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # the stages of a pipeline have a communicator for each direction, as torch's warning advises
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
}
"""What a process that is a rank has in its environment."""


class RankProcess(RankLink):
    """One rank other than rank 0, in a process that this one started."""

    def __init__(self, setup: RankSetup, *, advice: str = GO_ON) -> None:
        """Start the process; it loads the model while the caller goes on. :meth:`answer` waits until it is ready.

        Args:
            advice: What the user does once the process is lost.
        """
        self._advice = advice
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cohort.ranks.rank_program", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **RANK_ENVIRONMENT},
                start_new_session=True,
            )
        super().__init__(setup.rank, Channel(Connection(ours.detach())))
        self.begin(setup)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_SECONDS)
            return
        self.kill()

    def kill(self) -> None:
        """End the process at once, whatever it is doing."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _lost(self) -> RankLostError:
        who = f"rank {self.rank} (process {self.process_id})"
        try:
            status = self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return RankLostError(f"{who} no longer answers; {self._advice}")
        how = f"with exit code {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = f"by {signal.Signals(-status).name}"
        return RankLostError(f"{who} ended {how}; {self._advice}")
