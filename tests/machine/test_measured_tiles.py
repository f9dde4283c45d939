"""``doctor --measure`` keeps what it measures, and refuses what it cannot do before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from cohort.core.errors import InputError
from cohort.kernels.backend import Backend, BackendChoice
from cohort.kernels.packed_linear.choice.own_table import read_own_table
from cohort.machine import measured_tiles
from cohort.machine.measured_tiles import measure_tiles
from cohort.scheduling.cost.exact_ratios import ExactStep, LayerWidths
from tests.training.small_models import save_llama

measuring = pytest.importorskip("cohort.kernels.packed_linear.choice.measuring")
GPU = "NVIDIA Test 9000"


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this machine have a GPU on which wider strips are faster."""
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "caches"))
    choice = BackendChoice(backend=Backend.TRITON, reason="a test")
    monkeypatch.setattr(measured_tiles, "describe_backend", lambda _: choice)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: GPU)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def measure(in_features: int, out_widths: tuple[int, ...], *, device: torch.device) -> Any:
        del device
        choice = {"expand_strip": 2048} if len(out_widths) > 1 else {}
        return measuring.MeasuredLinear(
            in_features=in_features, out_widths=out_widths, choice=choice, default_us=9.0, best_us=8.0, now_us=9.0
        )

    step = ExactStep(gpu=GPU, widths=LayerWidths(hidden_size=32, intermediate_size=48), tokens=1020, ratio=1.02)
    monkeypatch.setattr(measured_tiles, "measure_exact_steps", lambda *_, **__: (step,))
    # of workers: what is launched is noted, and nothing is compiled
    compiler = MagicMock()
    compiler.__enter__.return_value = compiler
    monkeypatch.setattr(measured_tiles, "KernelCompiler", lambda: compiler)

    def launch(*_: object, device: torch.device) -> None:
        del device
        assert compiler.collecting.return_value.__exit__.call_count == 0, "candidates are launched while collecting"

    monkeypatch.setattr(measuring, "launch_candidates", launch)
    monkeypatch.setattr(measuring, "measure_linear", measure)
    return tmp_path


def test_every_shape_of_a_model_is_measured_and_kept(on_gpu: Path) -> None:
    save_llama(on_gpu / "model")
    said = list[str]()
    report = measure_tiles(str(on_gpu / "model"), say=said.append)
    # q + k + v, o, gate + up, down
    assert len(report.linears) == len(read_own_table(GPU)) == 4
    assert [row["choice"] for row in read_own_table(GPU)].count({"expand_strip": 2048}) == 2
    assert said[0] == "compiling candidates for 4 shapes of linears"
    assert len(said) == 5
    assert [step.tokens for step in report.exact_steps] == [1020]


def test_what_cannot_be_measured_is_refused_with_the_reason(on_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no/such/model"):
        measure_tiles("no/such/model", say=print)
    save_llama(on_gpu / "model")
    (on_gpu / "caches").write_text("a file")
    with pytest.raises(InputError, match="a directory that can be written"):
        measure_tiles(str(on_gpu / "model"), say=print)
    monkeypatch.undo()
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU that kernels are compiled for"):
            measure_tiles(str(on_gpu / "model"), say=print)
