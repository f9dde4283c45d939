"""Compiles the kernels of a task all at once, where this machine has not compiled them before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from cohort.core.durable_files import write_text
from cohort.core.units import counted
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.compile_ahead import SUFFIX, KernelCompiler, cache_marker, triton_cache
from cohort.kernels.packed_linear.choice.own_table import own_rows
from cohort.machine.machine import Machine
from cohort.models.decoder import Decoder
from cohort.models.stand_in import stand_in_decoder
from cohort.models.weight_formats import PLAIN
from cohort.parallel.launched_model import LaunchedModel
from cohort.tasks.task_file import TaskFile
from cohort.training.compile_ahead import collect_launches, kinds_of_adapters
from cohort.training.device_memory import release_cached
from cohort.training.trial import TrialSpec

__all__ = ["KernelWarmUp", "workers_ahead"]

# sizes of passes that choose other tiles, from the largest that is planned to a single row's
PASS_TOKENS = (16384, 4096, 1024, 256)
# between them, other strips of columns alone: they halve as a stream doubles
STEP_TOKENS = (8192, 2048, 512)


@contextlib.contextmanager
def workers_ahead(task: TaskFile) -> Iterator[KernelCompiler | None]:
    """Yield workers that start before the model is known, where nothing was ever compiled; they end with the block.

    Elsewhere there may be nothing to compile: :class:`KernelWarmUp` finds out, and starts workers if need be.
    """
    if task.num_gpus == 0 or not torch.cuda.is_available() or (cache := triton_cache()) is None:
        yield None
        return
    device = torch.device("cuda")
    is_cold = describe_backend(device).backend is Backend.TRITON and next(cache.glob(f"*{SUFFIX}"), None) is None
    if not is_cold:
        yield None
        return
    with KernelCompiler() as compiler:
        yield compiler


class KernelWarmUp:
    """The kernels of a task: collected before its model is loaded where that is possible, compiled meanwhile."""

    def __init__(
        self,
        machine: Machine,
        *,
        model: LaunchedModel,
        specs: Sequence[TrialSpec],
        rows: TokenisedRows,
        say: Callable[[str], None],
        workers: KernelCompiler | None = None,
    ) -> None:
        """Look whether the kernels were compiled before; start workers if not and there are none."""
        self._machine, self._model, self._say = machine, model, say
        self._usual = max(2, round(float(rows.lengths.mean())))
        self._adapters = kinds_of_adapters(spec.adapter for spec in specs)
        self._marker = None
        self._has_collected = False
        if machine.device.type == "cuda" and describe_backend(machine.device).backend is Backend.TRITON:
            tiles = own_rows(machine.device_name)
            linears = tuple(sorted(model.layout.linears))
            facts = (model.config, machine.dtype, machine.precision, linears, self._adapters, tiles)
            # a shard's layers end otherwise than those of a whole model of its sizes
            shard = () if model.region is None else ("shard",)
            self._marker = cache_marker(*facts, PASS_TOKENS, STEP_TOKENS, *shard)
        needs_some = self._marker is not None and not _is_whole(self._marker)
        self._compiler = (workers or KernelCompiler()) if needs_some else None

    def __enter__(self) -> KernelWarmUp:
        return self

    def __exit__(self, *error: object) -> None:
        if self._compiler is not None:
            self._compiler.__exit__(*error)

    def begin(self) -> None:
        """Collect the kernels before the weights are there, so that they are compiled while these are read."""
        # what a quantised weight launches depends on how it is kept
        if self._compiler is not None and self._machine.quantization == PLAIN.name:
            dtype: torch.dtype = getattr(torch, self._machine.dtype)
            model = self._model
            self._collect(
                lambda: stand_in_decoder(model.config, dtype=dtype, device=self._machine.device, region=model.region)
            )

    def finish(self, decoder: Decoder | None) -> None:
        """Wait until all kernels are compiled; nothing happens where there is nothing to compile.

        Args:
            decoder: The model; None where other processes load it.
        """
        # the layers of a ring are not all on the device at once
        is_elsewhere = decoder is None or decoder.ring is not None
        if self._compiler is None or self._marker is None or (is_elsewhere and not self._has_collected):
            return
        if not self._has_collected:
            assert decoder is not None, "kernels are collected from a model that is here"
            self._collect(lambda: decoder)
        compiled = self._compiler.wait()
        if compiled.num_failed:
            self._say(
                f"{counted(compiled.num_failed, 'kernel')} will be compiled by the first pass that needs it: "
                f"{compiled.first_error}"
            )
        # none where the workers could not compile: the next start tries again
        if compiled.num_kernels and self._has_collected:
            _mark(self._marker)

    def _collect(self, decoder_of: Callable[[], Decoder]) -> None:
        assert self._compiler is not None
        self._say("compiling kernels, once for this model, these ranks and this GPU")
        try:
            collect_launches(
                decoder_of(),
                compiler=self._compiler,
                target_linears=self._model.layout.linears,
                adapters=self._adapters,
                usual=self._usual,
                pass_tokens=PASS_TOKENS,
                step_tokens=STEP_TOKENS,
                numerics=self._machine.numerics,
            )
        except Exception as error:  # whatever it is, the pass that needs a kernel compiles it, or raises by itself
            self._say(f"kernels will be compiled as they are needed ({type(error).__name__}: {error})")
        else:
            self._has_collected = True
        release_cached(self._machine.device)


def _is_whole(marker: Path) -> bool:
    """Return whether Triton's cache can still hold all that it held when ``marker`` was written."""
    try:
        before = int(marker.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return False
    # where somebody removed some, the workers find which are missing
    return _num_folders(marker.parent) >= before


def _mark(marker: Path) -> None:
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_text(marker, f"{_num_folders(marker.parent)} kernels in the cache\n")


def _num_folders(cache: Path) -> int:
    # Triton keeps each kernel in a folder of its own
    return sum(entry.is_dir() for entry in cache.iterdir())
