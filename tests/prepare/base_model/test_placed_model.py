"""A placed model's ranks and sizes: a group of ranks counts as one bank, and refuses what only separate ranks do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem
from cohort.memory.budget import Sizes
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.base_model import placed_model
from cohort.prepare.base_model.placed_model import PlacedModel, place_model
from cohort.ranks.rank_group import TensorGroup
from cohort.ranks.rank_weights import ALL_RESIDENT
from cohort.scheduling.admission import Capacity

DEMAND: Any = object()


@dataclass
class Memory:
    """Gives what it was asked for: sizes for as many ranks as the request says."""

    asked: SizeRequest | None = None

    def sizes(self, demand: Any, *, request: SizeRequest | None) -> Sizes:
        assert demand is DEMAND
        self.asked = request
        num_ranks = 2 if request is None or request.num_ranks is None else request.num_ranks
        executor: Any = None
        capacity = Capacity(rank_rows=64, num_slots=4, tokens_per_step=100.0, num_ranks=num_ranks)
        return Sizes(executor=executor, capacity=capacity, device_state_bytes=1 << 20)


def placed(memory: Any, **fields: Any) -> PlacedModel:
    return PlacedModel(demand=DEMAND, decoder=None, memory=memory, **fields)


def sizes_of(model: PlacedModel, request: SizeRequest | None = None) -> Sizes:
    return model.sizes(request)


@pytest.mark.parametrize("request_", [None, SizeRequest(num_ranks=2, token_budget=40)])
def test_ranks_with_a_model_each_have_a_bank_each(request_: SizeRequest | None) -> None:
    memory = Memory()
    model = placed(memory)
    sizes = sizes_of(model, request_)
    assert memory.asked is request_
    assert (model.group_name, model.num_ranks(sizes), sizes.device_state_bytes) == (None, 2, 1 << 20)


@pytest.mark.parametrize("request_", [None, SizeRequest(num_ranks=4, token_budget=40)])
def test_ranks_that_hold_one_model_have_one_bank_and_park_states_next_to_it(request_: SizeRequest | None) -> None:
    memory = Memory()
    model = placed(memory, group=TensorGroup(size=4))
    sizes = sizes_of(model, request_)
    assert memory.asked == replace(request_ or SizeRequest(), num_ranks=1)
    assert sizes.capacity.num_ranks == 1
    assert (model.group_name, model.num_ranks(sizes), sizes.device_state_bytes) == ("tensor", 4, 1 << 20)


class Kernels:
    """Collects kernels, and notes that it has."""

    def __init__(self, *, collects_first: bool) -> None:
        self.collects_first, self.collected = collects_first, threading.Event()
        self.had_weights: list[bool] = []

    def begin(self) -> None:
        self.collected.set()

    def load(self, *, is_enough: Callable[[], bool]) -> None:
        self.had_weights.append(is_enough())


@pytest.mark.parametrize("meanwhile", [True, False])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_model_is_loaded_while_kernels_are_collected_or_after_that(
    meanwhile: bool, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: Any = Kernels(collects_first=meanwhile)
    threads = []

    def load(*_: Any, **__: Any) -> str:
        threads.append(threading.current_thread().name)
        assert kernels.collected.wait(timeout=30)
        if is_damaged:
            raise InputError(Problem(where="weights", found="a damaged file", allowed="a whole one", hint="Fetch it."))
        return "decoder"

    monkeypatch.setattr(placed_model, "load_decoder", load)
    monkeypatch.setattr(placed_model, "on_same_gpu", lambda load, _: load)
    monkeypatch.setattr(placed_model, "_has_room_for_both", lambda *_: True)
    task = SimpleNamespace(memory=SimpleNamespace(limit=None), located=lambda problem: problem)
    machine = SimpleNamespace(dtype="float32", device="cpu", quantization="none")
    demand: Any = SimpleNamespace(task=task, machine=machine)

    def loaded() -> object:
        return placed_model._load(demand, Path("model"), ALL_RESIDENT, kernels=kernels, begun=None)

    if is_damaged:
        with pytest.raises(InputError, match="a damaged file"):
            loaded()
    else:
        assert loaded() == "decoder"
    assert (threads == ["cohort-loading"]) is meanwhile


def test_a_model_that_is_being_loaded_is_not_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = Kernels(collects_first=False)
    begun: Future[Any] = Future()
    begun.set_result("decoder")
    monkeypatch.setattr(placed_model, "load_decoder", lambda *_, **__: pytest.fail("loaded again"))
    task = SimpleNamespace(memory=SimpleNamespace(limit=None), located=lambda problem: problem)
    demand: Any = SimpleNamespace(
        task=task, machine=SimpleNamespace(dtype="float32", device="cpu", quantization="none")
    )
    found: Any = placed_model._load(demand, Path("model"), ALL_RESIDENT, kernels=kernels, begun=begun)
    assert (found, kernels.collected.is_set()) == ("decoder", True)
    assert kernels.had_weights == [True], "kernels are loaded until it is there"


def test_memory_is_measured_before_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()

    class Compiling:
        def __enter__(self) -> Compiling:
            return self

        def __exit__(self, *_: object) -> None:
            done.append("workers are left")

        @contextlib.contextmanager
        def measuring(self, decoder: str, objective: str) -> Iterator[None]:
            done.append(f"passes of {decoder} with {objective}")
            yield
            done.append("measured")

    place: Any = SimpleNamespace(group=None, held=None, weights=ALL_RESIDENT, layout="layout", notes=())
    for name, value in (
        ("choose_model_place", place),
        ("available_host_bytes", 0),
        ("launched_model", None),
        ("KernelWarmUp", Compiling()),
        ("_load", "decoder"),
        ("replace", "demand"),
    ):
        monkeypatch.setattr(placed_model, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(placed_model, "plan_memory", lambda *_, decoder, **__: done.append(f"measure {decoder}"))
    rows = SimpleNamespace(lengths=np.array([4]))
    specs = [SimpleNamespace(objective="sft", adapter=None)]
    demand: Any = SimpleNamespace(machine=None, config=None, layout=None, specs=specs, rows=rows)
    found: Any = place_model(demand, Path("model"), request=SizeRequest(), clock=ManualClock(), say=done.append)
    assert done == ["passes of decoder with sft", "measure decoder", "measured", "workers are left"]
    assert found.decoder == "decoder"
