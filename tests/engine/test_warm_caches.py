"""What is done before a first run, and what is refused before a model is read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.core.errors import InputError
from cohort.engine import warm_caches as module
from cohort.engine.train.watching.progress import SilentWatcher
from cohort.engine.warm_caches import warm_caches
from cohort.kernels.backend import Backend
from cohort.machine.compile_ahead.workers import Compiled
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pretend that kernels are compiled here; a CPU has none, so that nothing is."""
    pretended = SimpleNamespace(backend=Backend.TRITON, reason="pretended")
    monkeypatch.setattr(module, "describe_backend", lambda _: pretended)
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.mark.usefixtures("with_kernels")
def test_a_model_and_a_task_go_through_what_a_run_does_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    monkeypatch.setattr(module, "settle_compiling", lambda: settled.append("settled"))
    folder = write_inputs(tmp_path / "in")
    (folder / "task.yaml").write_text(json.dumps(tiny_data()))
    for given, is_task in ((str(folder / "model"), False), (str(folder / "task.yaml"), True)):
        report = warm_caches(given, watcher=SilentWatcher())
        assert report.is_task is is_task
        assert report.caches == (str(tmp_path / "cache"), str(tmp_path / "triton"))
        phases = [phase for phase, _ in report.phases]
        assert phases[0] == "reading and tokenising the data"
        assert phases[1].startswith("loading ")
        assert all(seconds >= 0 for _, seconds in report.phases)
        # a run goes on while kernels are compiled: here they are what is wanted
        assert len(settled) == 1 + is_task
    # nothing is left of it but caches
    assert sorted(path.name for path in folder.iterdir()) == ["model", "task.yaml", "train.jsonl"]


@pytest.mark.usefixtures("with_kernels")
def test_a_cache_that_cannot_be_written_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_inputs(tmp_path / "in")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="Set COHORT_CACHE_DIR and TRITON_CACHE_DIR"):
        warm_caches(str(folder / "model"), watcher=SilentWatcher())


def test_a_gpu_that_is_not_here_is_compiled_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_inputs(tmp_path / "in")
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    found = Compiled(num_kernels=7, num_failed=0)
    monkeypatch.setattr(module, "compile_for_absent_gpu", lambda task, kind, *, say: say("compiling") or found)
    watcher = SilentWatcher()
    report = warm_caches(str(folder / "model"), watcher=watcher, gpu="NVIDIA H200")
    assert (report.device, report.num_kernels) == ("NVIDIA H200", 7)
    assert [phase for phase, _ in report.phases] == ["compiling"]
    with pytest.raises(InputError, match="Did you mean 'NVIDIA H200'"):
        warm_caches(str(folder / "model"), watcher=watcher, gpu="H200")
    found = Compiled(num_kernels=7, num_failed=2, first_error="ValueError: no such architecture")
    with pytest.raises(InputError, match="2 of 9 kernels that Triton did not compile for NVIDIA B200: ValueError"):
        warm_caches(str(folder / "model"), watcher=watcher, gpu="NVIDIA B200")


def test_wrong_models_and_machines_are_refused(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "in")
    with pytest.raises(InputError, match="nowhere"):
        warm_caches(str(tmp_path / "nowhere"), watcher=SilentWatcher())
    with pytest.raises(InputError, match=r"nowhere.yaml"):
        warm_caches(str(tmp_path / "nowhere.yaml"), watcher=SilentWatcher())
    (folder / "task.yaml").write_text(json.dumps(tiny_data()))
    with pytest.raises(InputError, match="on which no kernel is compiled"):
        warm_caches(str(folder / "task.yaml"), watcher=SilentWatcher())
