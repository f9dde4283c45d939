"""A model is read while rows are tokenised: when it begins, who gets it, and that a refused task leaves nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.machine.machine import Machine
from cohort.memory.size_inputs import SizeRequest
from cohort.models.config_file import read_config
from cohort.models.counts import weight_bytes
from cohort.models.weights import LoadStoppedError, load_decoder
from cohort.prepare import inputs
from cohort.prepare.base_model import placed_model, weights_ahead
from cohort.prepare.base_model.weights_ahead import COLLECTING_BYTES, WeightsAhead, has_room_to_load
from cohort.prepare.fingerprints import model_fingerprint, start_fingerprint
from cohort.prepare.preparation import prepare
from cohort.prepare.rows.reading import read_rows
from cohort.ranks.rank_weights import ALL_RESIDENT
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = torch.device("cpu")
MACHINE = Machine(device=CPU, device_name="a cpu", dtype="float32", threads=1, memory_bytes=8 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("ahead"))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    """Loads that have begun, each with a weight that it has read; they end when they are told to."""
    found: list[weakref.ref[torch.Tensor]] = []

    def load(*_: Any, stop: threading.Event, **__: Any) -> None:
        weight = torch.zeros(8)
        found.append(weakref.ref(weight))
        assert stop.wait(timeout=60)
        raise LoadStoppedError

    monkeypatch.setattr(weights_ahead, "load_decoder", load)
    return found


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_model_is_read_once_while_the_rows_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    at_rows = threading.Event()

    def rows(*args: Any, **keys: Any) -> Any:
        order.append("rows")
        at_rows.set()
        return read_rows(*args, **keys)

    def loaded(*args: Any, **keys: Any) -> Any:
        # it would wait for ever if the rows came after it
        assert at_rows.wait(timeout=60)
        order.append(threading.current_thread().name)
        return load_decoder(*args, **keys)

    def hashed(directory: Path) -> Future[str]:
        order.append("hash")
        return start_fingerprint(directory)

    monkeypatch.setattr(inputs, "read_rows", rows)
    monkeypatch.setattr(weights_ahead, "load_decoder", loaded)
    monkeypatch.setattr(weights_ahead, "start_fingerprint", hashed)
    monkeypatch.setattr(placed_model, "load_decoder", lambda *_, **__: pytest.fail("loaded again"))
    prepared = prepare(tiny_task(folder), clock=SystemClock())
    assert order == ["hash", "rows", "cohort-loading"]
    assert prepared.decoder is not None
    assert prepared.facts.inputs.model_hash == model_fingerprint(prepared.inputs.model_directory)


@pytest.mark.usefixtures("without_collections")
def test_a_task_that_is_refused_for_a_row_leaves_no_load_and_no_weight(
    folder: Path, begun: list[weakref.ref[torch.Tensor]], tmp_path: Path
) -> None:
    rows = tmp_path / "wrong.jsonl"
    rows.write_text('{"neither": 1}\n', encoding="utf-8")
    with pytest.raises(InputError, match="neither"):
        prepare(tiny_task(folder, dataset={"train": str(rows)}), clock=SystemClock())
    assert [weight() for weight in begun] == [None]
    loading = [thread for thread in threading.enumerate() if thread.name == "cohort-loading"]
    for thread in loading:
        # it has said how it ended, and is about to; one that was not stopped goes on for a minute
        thread.join(30)
    assert not [thread for thread in loading if thread.is_alive()]


@pytest.mark.parametrize(
    ("keys", "machine", "request_"),
    [
        ({"memory": {"limit": "1GiB"}}, MACHINE, SizeRequest()),
        ({}, replace(MACHINE, quantization="int8"), SizeRequest()),
        ({}, replace(MACHINE, memory_bytes=1000), SizeRequest()),
        ({}, replace(MACHINE, num_gpus=2), SizeRequest()),
        ({}, MACHINE, SizeRequest(num_ranks=2)),
    ],
)
def test_nothing_begins_where_the_model_could_be_elsewhere(
    folder: Path, begun: list[Any], keys: dict[str, Any], machine: Machine, request_: SizeRequest
) -> None:
    ahead = WeightsAhead(tiny_task(folder, **keys), request=request_)
    ahead.begin(folder / "model", read_config(folder / "model"), machine)
    assert ahead.take(folder / "model", machine, is_wanted=True) is None
    assert begun == []


@pytest.mark.parametrize("quantization", ["none", "fp8", "int8", "nf4"])
def test_a_gpu_begins_with_the_arguments_of_a_load_that_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def load(*args: Any, **keys: Any) -> str:
        calls.append((args, {key: value for key, value in keys.items() if key not in ("stop", "streaming")}))
        return "a decoder"

    for module in (weights_ahead, placed_model):
        monkeypatch.setattr(module, "load_decoder", load)
    monkeypatch.setattr(weights_ahead, "on_same_gpu", lambda read, _: read)
    task = tiny_task(folder)
    gpu = replace(MACHINE, device=torch.device("cuda"), dtype="bfloat16", quantization=quantization)
    gpu = replace(gpu, memory_bytes=2 * COLLECTING_BYTES)
    ahead = WeightsAhead(task, request=SizeRequest())
    ahead.begin(folder / "model", read_config(folder / "model"), gpu)
    begun = ahead.take(folder / "model", gpu, is_wanted=True)
    assert begun is not None
    found: Any = begun.result(timeout=60)
    assert found == "a decoder"
    kernels: Any = SimpleNamespace(collects_first=False, begin=lambda: None, finish=lambda _: None)
    demand: Any = SimpleNamespace(task=task, machine=gpu)
    placed_model._load(demand, folder / "model", ALL_RESIDENT, kernels=kernels, begun=None)
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    ("machine", "is_wanted"),
    [
        (replace(MACHINE, dtype="float64"), True),
        (replace(MACHINE, quantization="fp8"), True),
        (MACHINE, False),
    ],
)
def test_a_model_that_is_wanted_otherwise_is_let_go(
    folder: Path, begun: list[Any], machine: Machine, is_wanted: bool
) -> None:
    ahead = WeightsAhead(tiny_task(folder), request=SizeRequest())
    ahead.begin(folder / "model", read_config(folder / "model"), MACHINE)
    assert ahead.take(folder / "model", machine, is_wanted=is_wanted) is None
    assert len(begun) == 1


def test_a_gpu_needs_room_for_what_is_collected_as_well(folder: Path) -> None:
    task, config = tiny_task(folder), read_config(folder / "model")
    gpu = replace(MACHINE, device=torch.device("cuda"))
    assert has_room_to_load(task, config, MACHINE, there_bytes=1 << 30)
    assert not has_room_to_load(task, config, gpu, there_bytes=COLLECTING_BYTES)
    assert has_room_to_load(task, config, gpu, there_bytes=2 * COLLECTING_BYTES)
    # of quantised weights they are collected once these are there
    assert has_room_to_load(task, config, replace(gpu, quantization="nf4"), there_bytes=COLLECTING_BYTES)


@pytest.mark.parametrize("quantization", ["fp8", "int8", "nf4"])
def test_quantised_weights_need_room_for_what_is_kept_of_them(folder: Path, quantization: str) -> None:
    task, config = tiny_task(folder), read_config(folder / "model")
    gpu = replace(MACHINE, device=torch.device("cuda"), dtype="bfloat16", quantization=quantization)
    kept = weight_bytes(config, dtype=torch.bfloat16, weight_format=quantization, room_bytes=gpu.memory_bytes)
    assert has_room_to_load(task, config, gpu, there_bytes=2 * kept)
    assert not has_room_to_load(task, config, gpu, there_bytes=2 * kept - 1)
