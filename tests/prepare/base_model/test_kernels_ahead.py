"""Kernels are collected before rows are read, for the trials that the search space has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.machine.machine import Machine
from cohort.models.config_file import read_config
from cohort.prepare.base_model import kernels_ahead
from cohort.prepare.base_model.kernels_ahead import KernelsAhead
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

MACHINE = Machine(device=torch.device("cpu"), device_name="a cpu", dtype="float32", threads=1, memory_bytes=8 << 30)


class WarmUp:
    """Notes what it was asked to collect."""

    collects_first = True

    def __init__(self, machine: Machine, *, model: Any, adapters: Any, **named: Any) -> None:
        self.machine, self.layout, self.named = machine, model.layout, named
        self.ranks = sorted({adapter.r for adapter in adapters})
        self.num_collections = 0

    def begin(self) -> None:
        self.num_collections += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("ahead"))


def ahead(folder: Path, *, is_loading: bool = True, workers: Any = "workers", **keys: Any) -> tuple[Any, list[str]]:
    said = list[str]()
    weights: Any = SimpleNamespace(begin=lambda *_: said.append("weights begin"), is_loading=is_loading)
    begun: Any = SimpleNamespace(machine=SimpleNamespace(numerics="exact"))
    task = tiny_task(folder, **keys)
    found = KernelsAhead(task, weights=weights, workers=workers, begun=begun, say=said.append)
    found.begin(folder, read_config(Path(task.model_name_or_path)), MACHINE)
    return found.kernels, said


def test_they_are_those_of_the_search_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_ahead, "KernelWarmUp", WarmUp)
    numerics = list[Any]()

    def decide(_task: Any, machine: Machine, *, recorded: Any, **_: Any) -> Machine:
        numerics.append(recorded.numerics)
        return machine

    monkeypatch.setattr(kernels_ahead, "with_numerics", decide)
    kernels, said = ahead(folder)
    assert (kernels.num_collections, kernels.named["workers"]) == (1, "workers")
    assert kernels.ranks
    assert kernels.layout.linears
    assert numerics == [Numerics.EXACT], "a run that is resumed keeps them"
    assert said == ["weights begin", "reading and tokenising the data"]


def test_nothing_is_collected_where_nothing_compiles_or_no_model_is_being_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_ahead, "KernelWarmUp", WarmUp)
    assert ahead(folder, workers=None) == (None, ["weights begin"])
    assert ahead(folder, is_loading=False) == (None, ["weights begin"])
    # there is nothing to compile, or a format decides what is launched
    monkeypatch.setattr(WarmUp, "collects_first", False)
    assert ahead(folder) == (None, ["weights begin"])


def test_what_is_wrong_is_left_to_the_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such module")

    monkeypatch.setattr(kernels_ahead, "select_modules", refuse)
    assert ahead(folder) == (None, ["weights begin"])
