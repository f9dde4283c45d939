"""A script: which kernels a model's passes launch on a kind of GPU that is not here, or on the one that is."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.machine.compile_ahead.absent_gpu import absent_gpu
from cohort.machine.compile_ahead.launched_model import stand_in_decoder
from cohort.machine.compile_ahead.launches import collect_launches, kinds_of_adapters
from cohort.machine.compile_ahead.workers import _compile
from cohort.machine.gpu_kinds import GpuKind, find_gpu_kind
from cohort.models.config_file import read_config


class _Collected:
    """Stands in for workers: keeps what they would compile."""

    def __init__(self) -> None:
        self.jobs = dict[str, bytes]()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
        own = jit._do_compile

        def take(fn: Any, _: Any, signature: Any, __: Any, constants: Any, options: Any, attrs: Any, *___: Any) -> None:
            job = pickle.dumps((fn.fn.__module__, fn.fn.__qualname__, signature, constants, vars(options), attrs))
            # equal jobs may be pickled differently: their parts are one object here and two there
            words = [str(signature), str({key: getattr(value, "cache_key", value) for key, value in constants.items()})]
            self.jobs[" ".join([fn.fn.__name__, *words, str(vars(options)), str(attrs)])] = job

        jit._do_compile = take
        try:
            yield
        finally:
            jit._do_compile = own


def _collect(folder: str) -> dict[str, bytes]:
    """Return what workers would be given, by its words, which begin with the name of the kernel."""
    found: Any = _Collected()
    adapters = kinds_of_adapters([AdapterSpec(r=16, lora_alpha=16.0)])
    for numerics in Numerics:
        decoder = stand_in_decoder(read_config(Path(folder)), dtype=torch.bfloat16, device=torch.device("cuda"))
        collect_launches(
            decoder,
            compiler=found,
            target_linears=decoder.linears,
            adapters=adapters,
            usual=20,
            pass_tokens=(200,),
            numerics=numerics,
        )
    jobs: dict[str, bytes] = found.jobs
    return jobs


@contextlib.contextmanager
def _no_room_for_pinned_memory() -> Iterator[None]:
    own = Tensor.pin_memory

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    tensor_class: Any = Tensor
    tensor_class.pin_memory = refuse
    try:
        yield
    finally:
        tensor_class.pin_memory = own


def _counts(folder: str, name: str, compiled: str) -> dict[str, int]:
    with absent_gpu(find_gpu_kind(name, where="--gpu")):
        jobs = _collect(folder)
        # the transfer is waited for, and nothing else changes
        with _no_room_for_pinned_memory():
            assert _collect(folder).keys() == jobs.keys()
    # as a worker does
    _compile(next(job for words, job in jobs.items() if words.startswith(f"{compiled} ")), (9, 0))
    return collections.Counter(words.partition(" ")[0] for words in jobs)


def _compared(folder: str) -> dict[str, int]:
    here, properties = _collect(folder), torch.cuda.get_device_properties(0)
    kind = GpuKind(
        name=properties.name,
        capability=(properties.major, properties.minor),
        num_multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
    )
    with absent_gpu(kind):
        there = _collect(folder)
    return {
        "both": len(here.keys() & there.keys()),
        "only here": len(here.keys() - there.keys()),
        "only by its kind": len(there.keys() - here.keys()),
    }


if __name__ == "__main__":
    folder, gpu, *kernel = sys.argv[1:]
    print(json.dumps(_compared(folder) if gpu == "here" else _counts(folder, gpu, kernel[0])))
