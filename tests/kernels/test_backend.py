from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor

from cohort.kernels.backend import (
    Backend,
    BackendError,
    choose_backend,
    describe_backend,
    implementation,
    triton_interprets,
    use_backend,
)
from cohort.kernels.swiglu import swiglu

WITHOUT_TRITON = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("blocked", name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util, torch
importlib.util.find_spec = lambda name, _real=importlib.util.find_spec: None if name == "triton" else _real(name)
from cohort.kernels.backend import Backend, BackendError, choose_backend, describe_backend
from cohort.kernels.swiglu import swiglu
print(describe_backend("cpu"))
swiglu(torch.randn(4, 8, requires_grad=True)).sum().backward()
try:
    choose_backend(torch.randn(2), backend=Backend.TRITON)
except BackendError as error:
    print(error)
"""


def test_the_cpu_takes_the_reference_and_says_why() -> None:
    assert choose_backend(torch.randn(2)) is Backend.REFERENCE
    assert str(describe_backend("cpu")) == "reference (the Triton kernels need a GPU, this is cpu)"


def test_without_triton_everything_runs_on_the_reference() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Triton is not installed" in done.stdout


def test_an_argument_wins_over_the_context_and_the_context_ends() -> None:
    x = torch.randn(2, dtype=torch.float64)
    with use_backend(Backend.REFERENCE):
        assert describe_backend("cpu").reason == "forced by use_backend"
        assert choose_backend(x) is Backend.REFERENCE
    assert describe_backend("cpu").reason != "forced by use_backend"


def test_digits_are_not_lost_silently() -> None:
    if not triton_interprets():
        pytest.skip("asks for the interpreter")
    with pytest.raises(BackendError, match=r"lose digits of torch\.float64"):
        choose_backend(torch.randn(2, dtype=torch.float64), backend=Backend.TRITON)


def test_triton_on_a_cpu_tensor_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(BackendError, match="TRITON_INTERPRET=1"):
        choose_backend(torch.randn(2), backend=Backend.TRITON)


def test_backward_uses_the_backend_of_its_forward(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 8, device=triton_device, requires_grad=True)
    used: list[str] = []

    def watch(backend: Backend) -> None:
        module = implementation("swiglu", backend)
        original = module.swiglu_backward

        def watched(*args: Tensor, **options: Tensor) -> Tensor:
            used.append(backend.value)
            result: Tensor = original(*args, **options)
            return result

        monkeypatch.setattr(module, "swiglu_backward", watched)

    for backend in Backend:
        watch(backend)
    with use_backend(Backend.TRITON):
        y = swiglu(x)
    worker = threading.Thread(target=lambda: y.sum().backward())  # autograd's own threads see no context either
    worker.start()
    worker.join()
    assert used == ["triton"]


@pytest.mark.gpu
def test_a_gpu_takes_triton_but_for_float64() -> None:
    assert describe_backend("cuda").backend is Backend.TRITON
    assert choose_backend(torch.randn(2, device="cuda", dtype=torch.bfloat16)) is Backend.TRITON
    assert choose_backend(torch.randn(2, device="cuda", dtype=torch.float64)) is Backend.REFERENCE
