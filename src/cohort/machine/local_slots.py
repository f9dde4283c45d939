"""The slots of this machine that a queue works in, and the hardware of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from cohort.core.errors import InputError, Problem, RunStateError
from cohort.core.process.cores import num_cores
from cohort.core.source_location import Place
from cohort.core.units import counted
from cohort.machine.cluster.local import LocalSlot, cpu_slots, gpu_slots
from cohort.machine.devices import hardware_of
from cohort.machine.machine import choose_machine
from cohort.scheduling.cost.hardware import Hardware

__all__ = ["choose_slots", "hardware_of_slots", "refuse_counts", "refuse_more_workers_than_cores"]

_PROBE = (
    "import json, dataclasses; from cohort.machine.machine import choose_machine; "
    "from cohort.machine.devices import hardware_of; "
    "print(json.dumps(dataclasses.asdict(hardware_of(choose_machine('auto', where='num_gpus')))))"
)


def choose_slots(*, gpus: int | None, workers: int | None, elsewhere: str = "") -> tuple[LocalSlot, ...]:
    """Return one slot per GPU, or per CPU worker.

    Args:
        gpus: GPUs to use; None: all there are, or one CPU worker where there are none.
        workers: CPU workers to use instead of GPUs.
        elsewhere: Added to the hint where there are too few GPUs.

    Raises:
        InputError: there are fewer GPUs, or no slot is asked for.
    """
    refuse_counts(gpus=gpus, workers=workers)
    if workers is not None:
        return _cpu(workers)
    names = _visible_gpus()
    if gpus is None:
        return gpu_slots(names, num_threads=_share_of_cores(len(names))) if names else _cpu(1)
    if gpus > len(names):
        found = f"{gpus}, but torch can use {len(names) or 'none'} here"
        allowed = f"1 to {len(names)}" if names else "--workers N, for the CPU"
        hint = f"Write --gpus {len(names)}." if names else "Write --workers 1, or install a torch build for your GPU."
        hint = f"{hint} {elsewhere}".rstrip()
        raise InputError(Problem(where=Place(option="--gpus"), found=found, allowed=allowed, hint=hint))
    return gpu_slots(names[:gpus], num_threads=_share_of_cores(gpus))


def refuse_counts(*, gpus: int | None, workers: int | None) -> None:
    """Refuse numbers that are wrong on any machine.

    Raises:
        InputError: both are given, or one is below 1.
    """
    if gpus is not None and workers is not None:
        raise InputError(
            Problem(
                where="--gpus, --workers",
                found=f"--gpus {gpus} and --workers {workers}",
                allowed="one of the two: GPUs, or workers on the CPU",
                hint="Leave one out.",
            )
        )
    for option, count in (("--gpus", gpus), ("--workers", workers)):
        if count is not None and count < 1:
            raise InputError(_too_few(option, count))


def refuse_more_workers_than_cores(workers: int) -> None:
    """Refuse CPU workers that would only wait for each other.

    Raises:
        InputError: there are more workers than cores that this process may use.
    """
    if workers > (cores := num_cores()):
        raise InputError(
            Problem(
                where=Place(option="--workers"),
                found=f"{workers}, but this process may use {counted(cores, 'core')}",
                allowed=f"1 to {cores}: more workers would wait for each other, and each holds a base model in memory",
                hint=f"Write --workers {cores}.",
            )
        )


def _too_few(option: str, found: int) -> Problem:
    other = " For the CPU, write --workers N." if option == "--gpus" else ""
    return Problem(where=option, found=str(found), allowed="1 or more", hint=f"Leave {option} out, or write 1.{other}")


def _cpu(workers: int) -> tuple[LocalSlot, ...]:
    return cpu_slots(workers, num_threads=_share_of_cores(workers))


def _share_of_cores(workers: int) -> int:
    # workers that together have more threads than cores wait for each other
    return max(1, num_cores() // workers)


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # workers get their GPU by this variable, so it must name GPUs as the user's own setting does
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(count)]
    return [name.strip() for name in visible.split(",") if name.strip()][:count]


def hardware_of_slots(slots: Sequence[LocalSlot]) -> Hardware:
    """Return the hardware of one slot; all are taken to be like the first.

    Raises:
        RunStateError: the GPU cannot be used.
    """
    environment = slots[0].environment
    if not environment.get("CUDA_VISIBLE_DEVICES"):
        whole = choose_machine(0, where="num_gpus")
        # a number that the user set is not in the slot's environment, and holds for the workers too
        threads = int(environment.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", whole.threads)))
        return hardware_of(replace(whole, threads=threads, memory_bytes=whole.memory_bytes // len(slots)))
    # in a process of its own: asking a GPU takes some of its memory for as long as the process lives
    asked = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        # libraries may print to stdout before the answer
        return Hardware(**json.loads(asked.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        said = asked.stderr.strip()[-2000:] or asked.stdout
        raise RunStateError(f"{slots[0].slot.device} cannot be used: {said}; see `cohort doctor`") from error
