"""Kernels are compiled ahead on a GPU alone, once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.machine.compile_ahead import task_kernels as kernels
from cohort.machine.compile_ahead.kernel_cache import mark
from cohort.machine.compile_ahead.task_kernels import workers_ahead
from cohort.machine.compile_ahead.workers import Compiled
from tests.machine.compile_ahead.fake_warm_up import Workers, warm_up
from tests.machine.compile_ahead.test_kernel_cache import kernel


def test_nothing_happens_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("no worker is needed")

    monkeypatch.setattr(kernels, "KernelCompiler", fails)
    decoder: Any = None
    with warm_up("cpu", say=fails) as found:
        found.begin()
        found.finish(decoder)
    with workers_ahead(on_gpu=True) as workers:
        assert workers is None


@pytest.mark.parametrize(
    ("quantization", "ring", "calls"),
    [
        ("none", None, ["collect stand-in", "loaded", "wait", "end"]),
        # how it is kept decides what is launched
        ("nf4", None, ["loaded", "collect model", "wait", "end"]),
        ("nf4", "ring", ["loaded", "end"]),
    ],
)
def test_kernels_are_collected_before_the_weights_are_there_where_nothing_depends_on_them(
    on_gpu: Path, quantization: str, ring: str | None, calls: list[str]
) -> None:
    workers, said = Workers(), list[str]()

    class Model:
        def __init__(self) -> None:
            self.ring = ring

        def __str__(self) -> str:
            return "model"

    model: Any = Model()
    with warm_up("cuda", say=said.append, workers=workers, quantization=quantization) as found:
        found.begin()
        workers.calls.append("loaded")
        found.finish(model)
    assert workers.calls == calls
    assert (on_gpu / "cohort-0.compiled").exists() == ("wait" in calls)
    assert said == ["compiling kernels, once for this model, these ranks and this GPU"] * ("wait" in calls)


@pytest.mark.parametrize(("quantization", "is_loaded"), [("none", True), ("nf4", False)])
def test_kernels_of_an_earlier_start_are_loaded_while_weights_are_read(
    on_gpu: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, is_loaded: bool
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(kernels, "launch_once", lambda decoder, **_: launched.append(decoder))
    with warm_up("cuda", say=str, workers=Workers(), quantization=quantization) as found:
        found.load(is_enough=lambda: False)
    assert launched == [], "they are being compiled"
    mark(on_gpu / "cohort-0.compiled")
    with warm_up("cuda", say=str, quantization=quantization) as found:
        found.load(is_enough=lambda: True)
        assert launched == [], "the weights are there"
        found.load(is_enough=lambda: False)
    assert launched == ["stand-in"] * is_loaded
    with warm_up("cpu", say=str) as found:
        found.load(is_enough=lambda: False)

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    # the passes load them
    monkeypatch.setattr(kernels, "launch_once", refused)
    with warm_up("cuda", say=str) as found:
        found.load(is_enough=lambda: False)
    assert len(launched) == is_loaded


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.FAST])
def test_kernels_of_the_blas_are_loaded_next_to_ours_for_exact_numerics(
    on_gpu: Path, monkeypatch: pytest.MonkeyPatch, numerics: Numerics
) -> None:
    calls: list[str] = []

    @contextlib.contextmanager
    def loading(decoder: object, *, is_enough: Callable[[], bool]) -> Iterator[None]:
        assert not is_enough()
        calls.append(f"begun for {decoder}")
        yield
        calls.append("ended")

    monkeypatch.setattr(kernels, "loading_blas_kernels", loading)
    monkeypatch.setattr(kernels, "launch_once", lambda decoder, **_: calls.append("launched"))
    mark(on_gpu / "cohort-0.compiled")
    with warm_up("cuda", say=str, numerics=numerics) as found:
        found.load(is_enough=lambda: False)
    if numerics is Numerics.EXACT:
        assert calls == ["begun for stand-in", "launched", "ended"]
    else:
        assert calls == ["launched"]


@pytest.mark.parametrize(
    ("quantization", "calls"), [("none", ["collect shard of it", "wait", "end"]), ("nf4", ["end"])]
)
def test_kernels_of_ranks_that_load_the_model_themselves_are_compiled_before_they_start(
    on_gpu: Path, quantization: str, calls: list[str]
) -> None:
    workers = Workers()
    with warm_up("cuda", say=str, workers=workers, quantization=quantization, region="shard") as found:
        found.begin()
        found.finish(None)
    assert workers.calls == calls
    assert (on_gpu / "cohort-0.compiled").exists() == ("wait" in calls)


@pytest.mark.parametrize(
    ("quantization", "ring", "calls"),
    [
        ("none", None, ["collect stand-in", "go on", "end"]),
        ("nf4", None, ["collect model", "go on", "end"]),
        ("nf4", "ring", ["end"]),
    ],
)
def test_kernels_are_compiled_behind_the_passes_that_come(
    on_gpu: Path, quantization: str, ring: str | None, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    workers, said = Workers(), list[str]()

    class Model:
        def __init__(self) -> None:
            self.ring = ring

        def __str__(self) -> str:
            return "model"

    model: Any = Model()
    with warm_up("cuda", say=said.append, workers=workers, quantization=quantization) as found:
        found.begin()
        found.go_on(model)
    assert workers.calls == calls
    assert not (on_gpu / "cohort-0.compiled").exists()
    if "go on" in calls:
        workers.ended(Compiled(num_kernels=3, num_failed=1, first_error="no room"))
        assert (on_gpu / "cohort-0.compiled").exists()
        # the last line of a run names the phase that a user sees
        assert said == ["compiling kernels, once for this model, these ranks and this GPU"]
        assert "1 kernel will be compiled by the first pass that needs it: no room" in caplog.text


def test_what_could_not_be_collected_is_tried_once_with_the_model(
    on_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[object]()

    def refuse(decoder: object, **_: Any) -> None:
        tried.append(decoder)
        raise RuntimeError("no room")

    monkeypatch.setattr(kernels, "collect_launches", refuse)
    workers, model = Workers(), SimpleNamespace(ring=None)
    decoder: Any = model
    with warm_up("cuda", say=str, workers=workers) as found:
        found.begin()
        found.go_on(decoder)
    assert workers.calls == ["go on", "end"]
    workers.ended(Compiled(num_kernels=0, num_failed=0))
    assert tried == ["stand-in", model]
    assert not (on_gpu / "cohort-0.compiled").exists()


def test_a_damaged_cache_is_said_and_filled_again(on_gpu: Path) -> None:
    marker, said = on_gpu / "cohort-0.compiled", list[str]()
    damaged = kernel(on_gpu, "damaged")
    mark(marker)
    model: Any = SimpleNamespace(ring=None)
    whole, again = Workers(), Workers()
    with warm_up("cuda", say=said.append, workers=whole) as found:
        found.begin()
        found.finish(model)
    assert (said, whole.calls) == ([], [])
    (damaged / "f.cubin").write_bytes(b"cut off")
    with warm_up("cuda", say=said.append, workers=again) as found:
        found.begin()
        assert found.finish(model).num_kernels == 3
    assert said[0] == f"1 kernel in {on_gpu} cannot be loaded: compiled again"
    assert again.calls == ["collect stand-in", "wait", "end"]


def test_what_is_not_compiled_is_said_and_workers_end_with_an_error(on_gpu: Path) -> None:
    said = list[str]()
    model: Any = SimpleNamespace(ring=None)
    with warm_up("cuda", say=said.append, workers=Workers(num_failed=2)) as found:
        found.begin()
        found.finish(model)
    assert said[1:] == ["2 kernels will be compiled by the first pass that needs it: no room"]
    workers = Workers()
    (on_gpu / "cohort-0.compiled").unlink()
    with pytest.raises(ZeroDivisionError), warm_up("cuda", say=said.append, workers=workers):
        raise ZeroDivisionError
    assert workers.calls == ["end"]


def test_workers_start_ahead_where_nothing_was_compiled(on_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: Any = contextlib.nullcontext("workers")
    monkeypatch.setattr(kernels, "KernelCompiler", lambda: started)
    monkeypatch.setattr(kernels, "triton_cache", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    read: list[str] = []
    monkeypatch.setattr(kernels, "begin_in_thread", lambda name, function: read.append(function.__name__))
    with workers_ahead(on_gpu=True) as workers:
        assert workers is started.enter_result
    assert read == ["identify_triton"], "for the launches of this process"
    with workers_ahead(on_gpu=False) as workers:
        assert workers is None
    # another model's, perhaps: whether there is something to compile is known once this one's sizes are
    (on_gpu / "cohort-1.compiled").touch()
    with workers_ahead(on_gpu=True) as workers:
        assert workers is None
    assert read == ["identify_triton"] * 2


@pytest.mark.parametrize(
    ("other", "num_collections"),
    [({}, 1), ({"r": 64}, 2), ({"numerics": Numerics.EXACT}, 2), ({"workers": None}, 2), ({"mean_length": 20.0}, 2)],
)
def test_what_was_collected_before_rows_were_read_is_not_collected_again(
    on_gpu: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], num_collections: int
) -> None:
    collected = list[object]()
    monkeypatch.setattr(kernels, "collect_launches", lambda decoder, **_: collected.append(decoder))
    monkeypatch.setattr(kernels, "cache_marker", lambda *facts: on_gpu / f"{hash(repr(facts))}.compiled")
    monkeypatch.setattr(kernels, "KernelCompiler", Workers)
    workers = Workers()
    early = warm_up("cuda", say=str, workers=workers)
    early.begin()
    model: Any = SimpleNamespace(ring=None)
    with warm_up("cuda", say=str, early=early, **{"workers": workers, **other}) as found:
        found.begin()
        found.finish(model)
    assert len(collected) == num_collections
    assert len(list(on_gpu.glob("*.compiled"))) == 1
