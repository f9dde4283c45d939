"""A process that trains two trials in a pack, saves them, and is killed by SIGKILL in the middle of a later step."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.numerics.bases import Base
from benchmarks.numerics.late_kernels import LateKernels
from benchmarks.numerics.pack_runs import PROBES, Run, draw_pack
from cohort.training.trial import TrialState

__all__ = ["KilledRun", "start"]

PROBE_IDS = (0, 1)
# a process that has to compile kernels of rank 256 by itself takes half a minute for each of them
MOST_SECONDS = 240.0


@dataclass(frozen=True)
class KilledRun:
    """The process, and where it saves its trials.

    Attributes:
        steps: Steps after which it saves them.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    steps: int

    def outcome(self) -> tuple[dict[int, TrialState], dict[int, list[float]]]:
        """Wait until the process is killed; return its trials' states and losses.

        Raises:
            subprocess.TimeoutExpired: it was not killed within :data:`MOST_SECONDS`.
        """
        try:
            status = self.process.wait(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if status != -signal.SIGKILL:
            raise RuntimeError(f"the process to be killed ended with status {status}")
        states, losses = torch.load(self.folder / "states.pt", weights_only=False)
        return states, losses


def start(base: str, *, steps: int, most_steps: int, seed: int) -> KilledRun:
    """Start the process on ``base``; a trial that has made ``most_steps`` makes no more."""
    folder = Path(tempfile.mkdtemp(prefix="killed-run-"))
    numbers = [str(steps), str(most_steps), str(seed)]
    command = [sys.executable, "-m", "benchmarks.numerics.killed_run", base, str(folder), *numbers]
    return KilledRun(subprocess.Popen(command), folder, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("most_steps", type=int)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    begun, late, draw = time.perf_counter(), LateKernels(), random.Random(options.seed + 1)
    decoder = Base(options.base).decoder()
    own, *others = Base.rows_of(decoder)
    probes = [probe for probe in PROBES if probe.trial_id in PROBE_IDS]
    run = Run(
        decoder,
        draw_pack(draw, size=6, recorded=False, probes=probes),
        own,
        steps=options.most_steps,
        draw=draw,
        other_rows=others,
    )
    loaded = time.perf_counter() - begun
    while min(map(len, run.losses.values())) < options.steps:
        run.step()
    compiled = late.taken()
    print(
        f"to be killed: loaded in {loaded:.1f} s, {time.perf_counter() - begun:.1f} s to its states, {compiled}",
        flush=True,
    )
    run.return_all()
    states = {trial_id: run.executor.state(trial_id) for trial_id in PROBE_IDS}
    torch.save((states, run.losses), options.folder / "states.part")
    os.replace(options.folder / "states.part", options.folder / "states.pt")
    threading.Timer(draw.uniform(0.0, 0.2), os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        run.step()


if __name__ == "__main__":
    main()
