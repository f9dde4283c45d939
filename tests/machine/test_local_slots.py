"""The slots of this machine, and the hardware of each."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from cohort.core.errors import InputError, RunStateError
from cohort.machine.cluster.local import cpu_slots, gpu_slots
from cohort.machine.local_slots import choose_slots, hardware_of_slots
from cohort.scheduling.cost.hardware import KNOWN_GPUS


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def devices(**counts: int | None) -> list[str]:
    slots = choose_slots(gpus=counts.get("gpus"), workers=counts.get("workers"))
    return [slot.slot.device.partition(" (")[0] for slot in slots]


def test_all_gpus_or_the_first_ones(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices() == ["GPU 0", "GPU 1"]
    assert devices(gpus=1) == ["GPU 0"]
    assert devices(workers=2) == ["CPU worker 0", "CPU worker 1"]
    # a user who hides GPUs from torch names those that are left
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert devices() == ["GPU 3", "GPU 5"]


def test_too_many_gpus_are_refused_with_what_plans_for_them(two_gpus: None) -> None:
    with pytest.raises(InputError) as caught:
        choose_slots(gpus=3, workers=None, elsewhere="Or write --dry-run.")
    (problem,) = caught.value.problems
    assert (problem.found, problem.allowed) == ("3, but torch can use 2 here", "1 to 2")
    assert problem.hint == "Write --gpus 2. Or write --dry-run."


def test_without_a_gpu_there_is_one_cpu_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices() == ["CPU worker 0"]
    with pytest.raises(InputError, match="--workers N, for the CPU"):
        choose_slots(gpus=1, workers=None)


def test_cpu_workers_share_memory_and_have_their_own_threads() -> None:
    one, four = (hardware_of_slots(cpu_slots(count, num_threads=1)) for count in (1, 4))
    assert four.memory_bytes == pytest.approx(one.memory_bytes / 4, rel=0.2)
    assert not one.is_gpu


def test_a_gpu_is_asked_in_a_process_that_sees_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        asked.append(env["CUDA_VISIBLE_DEVICES"])
        return SimpleNamespace(stdout="a warning\n" + json.dumps(asdict(KNOWN_GPUS["H200"])) + "\n", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert hardware_of_slots(gpu_slots(["7"], num_threads=1)) == KNOWN_GPUS["H200"]
    assert asked == ["7"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="", stderr="no driver"))
    with pytest.raises(RunStateError, match="GPU 7 cannot be used: no driver"):
        hardware_of_slots(gpu_slots(["7"], num_threads=1))
