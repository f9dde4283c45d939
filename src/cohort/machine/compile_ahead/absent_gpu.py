"""Stands in for a GPU that is not here, so that the kernels that it would be given can be collected and compiled.

Tensors on it have shapes, types and addresses and no memory: torch computes on its meta device what happens to them.
Kernels are not launched, numbers that are read back are zeros. torch's answers about the GPU are those of its kind.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cohort.machine.compile_ahead.workers import NamedGpu
from cohort.machine.gpu_kinds import GpuKind

__all__ = ["AbsentTensor", "absent_gpu"]

_DEVICE = torch.device("cuda", 0)
_META = torch.device("meta")
# allocations begin at multiples of it, as those of torch's allocator
_ALIGNMENT = 512
# more than a task asks for: how many there will be is not known here
_NUM_GPUS = 1 << 10


class AbsentTensor(Tensor):
    """A tensor on the GPU that is not here."""

    # attributes would come back as tensors of this class otherwise
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    of_meta: Tensor

    @staticmethod
    def __new__(cls, of_meta: Tensor) -> AbsentTensor:
        """Return the tensor that ``of_meta`` describes."""
        # for torch's own code it is on the meta device: none of CUDA's is entered
        made: AbsentTensor = Tensor._make_wrapper_subclass(
            cls,
            of_meta.shape,
            strides=of_meta.stride(),
            storage_offset=of_meta.storage_offset(),
            dtype=of_meta.dtype,
            device=_META,
        )
        made.of_meta = of_meta
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The GPU, as far as Python code can see."""
        return _DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """False."""
        return False

    def data_ptr(self) -> int:
        """Return an address that is aligned as the tensor's would be: kernels are compiled for that."""
        return _ALIGNMENT + int(self.of_meta.storage_offset()) * self.of_meta.element_size()

    def tolist(self) -> Any:
        """Return zeros."""
        return self._zeros().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return zeros."""
        return self._zeros().numpy(force=force)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return shape and type: there is nothing else."""
        del tensor_contents
        return f"AbsentTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute nothing but shapes."""
        del types
        return _call(func, args, kwargs or {})


class _OnAbsentGpu(TorchDispatchMode):
    """Makes tensors absent that are made on, or sent to, the GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _call(func, args, kwargs or {})


class _WithIndex(TorchFunctionMode):
    """Names the GPU by its number: a torch that was built without CUDA cannot ask which one is the current."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is Tensor.to:
            args, kwargs = tree_map(_indexed, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _indexed(value: Any) -> Any:
    return _DEVICE if isinstance(value, torch.device | str) and torch.device(value).type == "cuda" else value


def _call(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """Run an operation of torch on the host, or by shapes alone."""
    name, kwargs = func._schema.name, {key: value for key, value in given.items() if key != "pin_memory"}
    if name == "aten::_pin_memory":
        # there is no driver to lock the memory
        return args[0]
    absent = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, AbsentTensor)]
    device = kwargs.get("device")
    is_sent = device is not None and torch.device(device).type == "cuda"
    if not absent and not is_sent:
        return func(*args, **kwargs)
    if name == "aten::_local_scalar_dense":
        return torch.zeros((), dtype=args[0].dtype).item()
    if name == "aten::_to_copy" and device is not None and not is_sent:
        return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
    if name == "aten::copy_" and not isinstance(args[0], AbsentTensor):
        return args[0]
    # what an operation returns of its arguments stays the same tensor
    same = {id(tensor.of_meta): tensor for tensor in absent}

    def lowered(value: Any) -> Any:
        if isinstance(value, AbsentTensor):
            return value.of_meta
        if isinstance(value, Tensor):
            return value.to(_META)
        return _META if isinstance(value, torch.device) else value

    def raised(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return same[id(value)] if id(value) in same else AbsentTensor(value)

    lowered_args, lowered_kwargs = tree_map(lowered, (tuple(args), kwargs))
    if is_sent:
        lowered_kwargs["device"] = _META
    return tree_map(raised, func(*lowered_args, **lowered_kwargs))


class _Nothing:
    """A stream, an event or a device that does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _do_nothing


def _do_nothing(*_: object, **__: object) -> None:
    return None


class _Driver(NamedGpu):
    """A driver of Triton for a GPU that nothing is launched on."""

    def __init__(self, kind: GpuKind) -> None:
        super().__init__(kind.capability)
        self._name = kind.name

    def get_current_device(self) -> str:
        # kernels keep what they compiled by device: a GPU that is here has a number
        return f"absent {self._name}"

    def get_current_stream(self, device: object) -> int:
        del device
        return 0

    def get_active_torch_device(self) -> torch.device:
        return _DEVICE


@contextlib.contextmanager
def absent_gpu(kind: GpuKind) -> Iterator[None]:
    """Inside, this machine has GPUs of ``kind``, on which nothing is computed or launched. Triton must be installed.

    For passes whose launches are collected: :meth:`~cohort.machine.compile_ahead.workers.KernelCompiler.collecting`.
    """
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    with contextlib.ExitStack() as stack:
        # what was asked of a GPU before, or is asked now, holds for that one alone
        _forget_answers()
        stack.callback(_forget_answers)
        for name, answer in _answers(kind).items():
            stack.enter_context(_replaced(torch.cuda, name, answer))
        stack.enter_context(_replaced(driver, "_active", _Driver(kind)))
        stack.enter_context(_linkable_driver())
        # a backward pass on this thread, where the mode is
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(_WithIndex())
        stack.enter_context(_OnAbsentGpu())
        yield


def _answers(kind: GpuKind) -> dict[str, Any]:
    """Return what stands in for the parts of ``torch.cuda``."""
    properties = SimpleNamespace(
        name=kind.name,
        major=kind.capability[0],
        minor=kind.capability[1],
        multi_processor_count=kind.num_multiprocessors,
        shared_memory_per_block_optin=kind.shared_bytes,
        total_memory=kind.memory_bytes,
    )
    numbers = ("memory_allocated", "max_memory_allocated", "memory_reserved", "current_device")
    acts = ("_lazy_init", "empty_cache", "reset_peak_memory_stats", "synchronize", "set_per_process_memory_fraction")
    return {
        **dict.fromkeys(numbers, lambda *_: 0),
        **dict.fromkeys(acts, _do_nothing),
        **dict.fromkeys(("Stream", "Event", "device", "stream", "current_stream"), _Nothing),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        # as while passes are recorded, nothing can be asked of the GPU
        "is_current_stream_capturing": lambda: True,
        "is_bf16_supported": lambda *_, **__: kind.capability >= (8, 0),
        "device_count": lambda: _NUM_GPUS,
        "get_device_name": lambda *_: kind.name,
        "get_device_capability": lambda *_: kind.capability,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (kind.memory_bytes, kind.memory_bytes),
    }


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


def _forget_answers() -> None:
    """Empty the caches of our own functions that were asked about a GPU."""
    for name, module in list(sys.modules.items()):
        if name.startswith("cohort."):
            for value in list(vars(module).values()):
                if callable(forget := getattr(value, "cache_clear", None)) and not isinstance(value, type):
                    forget()


@contextlib.contextmanager
def _linkable_driver() -> Iterator[None]:
    """Let compilers build what launches kernels: it is linked against NVIDIA's driver, which comes with a GPU.

    Where there is none, a library of its name has its functions, which fail. None of them is called here.
    """
    with tempfile.TemporaryDirectory(prefix="cohort-driver-") as folder, contextlib.ExitStack() as stack:
        if _has_no_driver() and _build_driver(Path(folder) / "libcuda.so.1"):
            # compilers find it by the first, and what they have built loads it by the second
            for name, more in (("TRITON_LIBCUDA_PATH", ""), ("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))):
                stack.enter_context(_set_variable(name, f"{folder}:{more}" if more else folder))
        yield


def _has_no_driver() -> bool:
    backend: Any = importlib.import_module("triton.backends.nvidia.driver")
    # later versions of Triton link nothing
    with contextlib.suppress(AttributeError, OSError, subprocess.SubprocessError):
        try:
            backend.libcuda_dirs()
        except AssertionError:
            return True
    return False


def _build_driver(library: Path) -> bool:
    """Build a library with every function of NVIDIA's driver that Triton names; return whether there is a compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    backend: Any = importlib.import_module("triton.backends.nvidia.driver")
    sources = (path for path in Path(backend.__file__).parent.iterdir() if path.suffix in {".py", ".c"})
    names = {name for path in sources for name in re.findall(r"\bcu[A-Z]\w+", path.read_text(encoding="utf-8"))}
    if compiler is None:
        return False
    source = library.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(names)), encoding="utf-8")
    command = [*compiler.split(), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def _set_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
