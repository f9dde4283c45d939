"""Compiles the kernels of a task all at once, where this machine has not compiled them before."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import StorageFullError
from cohort.core.numerics import Numerics
from cohort.core.process.daemon_thread import begin_in_thread
from cohort.core.units import counted
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.packed_linear.choice.own_table import own_rows
from cohort.machine.compile_ahead.blas_kernels import loading_blas_kernels
from cohort.machine.compile_ahead.kernel_cache import cache_marker, is_whole, mark, remove_damaged
from cohort.machine.compile_ahead.launched_model import LaunchedModel, stand_in_decoder
from cohort.machine.compile_ahead.launches import (
    collect_launches,
    kinds_of_adapters,
    launch_once,
    measured_adapters,
)
from cohort.machine.compile_ahead.triton_cache import is_cold, triton_cache
from cohort.machine.compile_ahead.triton_digest import identify_triton
from cohort.machine.compile_ahead.workers import Compiled, KernelCompiler
from cohort.machine.machine import Machine
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.training.device_memory import release_cached
from cohort.training.objectives.objective import Objective

__all__ = ["KernelWarmUp", "workers_ahead"]

_log = logging.getLogger(__name__)

# sizes of passes that choose other tiles, from the largest that is planned to a single row's
PASS_TOKENS = (16384, 4096, 1024, 256)
# between them, other strips of columns alone: they halve as a stream doubles
STEP_TOKENS = (8192, 2048, 512)
# those of a sweep's first passes, of all trials together: the GPU waits for them
FIRST_TOKENS = (4096, 2048)
# tokens of a usual row that give the kernels of `kernels_ahead.USUAL_TOKENS`
SAME_LENGTHS = range(120, 301)
# those of a sweep's first passes, whose kernels are loaded while the weights are read
LOADED_TOKENS = (8192, 2048)
# next to those, sizes whose products have the other tiles: of an 8B model these two have all of them
LOADED_TILE_TOKENS = (1536, 256)


@contextlib.contextmanager
def workers_ahead(*, on_gpu: bool) -> Iterator[KernelCompiler | None]:
    """Yield workers that start before the model is known, where nothing was ever compiled; they end with the block.

    Elsewhere there may be nothing to compile: :class:`KernelWarmUp` finds out, and starts workers if need be.
    """
    if not on_gpu or not torch.cuda.is_available() or (cache := triton_cache()) is None:
        yield None
        return
    device = torch.device("cuda")
    if describe_backend(device).backend is not Backend.TRITON or not is_cold(cache):
        # while the data is read: the first launch would wait for it
        begin_in_thread("cohort-triton", identify_triton)
        yield None
        return
    with KernelCompiler() as compiler:
        # for the launches of this process; workers do it for themselves
        begin_in_thread("cohort-triton", identify_triton)
        yield compiler


class KernelWarmUp:
    """The kernels of a task: collected before its model is loaded where that is possible, compiled meanwhile.

    Attributes:
        problem: Why they could not be collected; empty where they were, or need not be.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        model: LaunchedModel,
        adapters: Iterable[AdapterSpec],
        mean_length: float,
        say: Callable[[str], None],
        workers: KernelCompiler | None = None,
        early: KernelWarmUp | None = None,
    ) -> None:
        """Look whether the kernels were compiled before; start workers if not and there are none.

        Args:
            adapters: Those of the task's trials.
            mean_length: Tokens of a usual row.
            early: What may have collected the same kernels for the same workers.
        """
        self._machine, self._model, self._say = machine, model, say
        self._usual = max(2, round(mean_length))
        own = list(adapters)
        self._adapters = kinds_of_adapters([*own, *measured_adapters(own)])
        self._marker = None
        self._has_collected = self._has_tried_model = False
        self.problem = ""
        if machine.device.type == "cuda" and describe_backend(machine.device).backend is Backend.TRITON:
            tiles = own_rows(machine.device_name)
            linears = tuple(sorted(model.layout.linears))
            numbers = (machine.dtype, machine.precision, machine.numerics)
            facts = (model.config, *numbers, linears, self._adapters, tiles)
            # a shard's layers end otherwise than those of a whole model of its sizes
            shard = () if model.region is None else ("shard",)
            self._marker = cache_marker(*facts, PASS_TOKENS, STEP_TOKENS, *shard)
        # of a model that transformers computes, the passes that need kernels compile them
        is_native = model.config.bridged is None
        needs_some = is_native and self._marker is not None and not self._are_there(self._marker)
        self._compiler = (workers or KernelCompiler()) if needs_some else None
        if early is not None and self._compiler is not None and self._compiler is early._compiler:
            is_same = early._marker == self._marker and self._usual in SAME_LENGTHS
            self._has_collected = early._has_collected and is_same

    def __enter__(self) -> KernelWarmUp:
        return self

    def __exit__(self, *error: object) -> None:
        if self._compiler is not None:
            self._compiler.__exit__(*error)

    @property
    def collects_first(self) -> bool:
        """Whether :meth:`begin` collects anything, without the model."""
        # what a quantised weight launches depends on how it is kept
        return self._compiler is not None and self._machine.quantization == PLAIN.name

    def begin(self) -> None:
        """Collect the kernels before the weights are there, so that they are compiled while these are read."""
        if self.collects_first and not self._has_collected:
            self._collect(self._stand_in)

    def load(self, *, is_enough: Callable[[], bool]) -> None:
        """Load the kernels that an earlier start has compiled, while the weights are read.

        A kernel is loaded by its first launch: its source is read again, to tell that it is the same, then its machine
        code. Those of a first step take a second, in which a GPU would wait.

        Args:
            is_enough: Returns whether the weights are there. Then the first real passes load the remaining kernels.
        """
        if self._marker is None or self._compiler is not None or self._model.config.bridged is not None:
            return
        if self._machine.quantization != PLAIN.name or is_enough():
            return
        # whatever is wrong: the pass that needs a kernel loads it, or raises by itself
        with contextlib.suppress(Exception):
            stand_in = self._stand_in()
            is_exact = self._machine.numerics is Numerics.EXACT
            with loading_blas_kernels(stand_in, is_enough=is_enough) if is_exact else contextlib.nullcontext():
                launch_once(
                    stand_in,
                    target_linears=self._model.layout.linears,
                    adapters=self._adapters,
                    usual=self._usual,
                    pass_tokens=LOADED_TOKENS,
                    tile_tokens=LOADED_TILE_TOKENS,
                    numerics=self._machine.numerics,
                    is_enough=is_enough,
                )

    @contextlib.contextmanager
    def measuring(self, decoder: Decoder, objective: Objective) -> Iterator[None]:
        """Measure the memory of passes inside; behind them kernels are compiled as by :meth:`go_on`.

        What a pass takes follows from its shapes, so where kernels are compiled its passes launch none of them, and are
        measured meanwhile (docs/decisions/0091). Other passes are launched, and wait for their kernels.

        Args:
            objective: Of the passes.
        """
        # where rows choose their experts by what kernels compute, sizes follow from that; a ring's copies are launches;
        # and what reads losses of single tokens, such as a user's function, would be given what was in memory
        follows_from_shapes = self._model.config.mixture is None and decoder.ring is None and not objective.reads_tokens
        if not (self._is_compiling(decoder) and self._has_collected and follows_from_shapes):
            self.go_on(decoder)
            yield
            return
        assert self._compiler is not None, "it compiles"
        with self._compiler.collecting():
            yield
        self.go_on(decoder)

    def go_on(self, decoder: Decoder) -> None:
        """Let kernels be compiled behind the passes that come: a launch waits for its own, and for no other.

        Nothing is to be timed until all are there, some seconds: workers take all cores.
        """
        if self._is_compiling(decoder):
            assert self._compiler is not None, "it compiles"
            self._compiler.go_on(self._note_behind)

    def finish(self, decoder: Decoder | None) -> Compiled:
        """Wait until all kernels are compiled; return how many were, or were found in the cache after all.

        Nothing happens where there is nothing to compile.

        Args:
            decoder: The model; None where other processes load it.
        """
        if not self._is_compiling(decoder):
            return Compiled(num_kernels=0, num_failed=0)
        assert self._compiler is not None, "it compiles"
        compiled = self._compiler.wait()
        self._note(compiled, tell=self._say)
        return compiled

    def _note_behind(self, compiled: Compiled) -> None:
        # the last line of a run names the phase that a user sees
        try:
            self._note(compiled, tell=_log.warning)
        except (StorageFullError, OSError) as error:
            _log.warning("the next start looks for all kernels again: %s", error)

    def _note(self, compiled: Compiled, *, tell: Callable[[str], None]) -> None:
        if compiled.num_failed:
            tell(
                f"{counted(compiled.num_failed, 'kernel')} will be compiled by the first pass that needs it: "
                f"{compiled.first_error}"
            )
        # none where the workers could not compile: the next start tries again
        if compiled.num_kernels and self._has_collected and self._marker is not None:
            mark(self._marker)

    def _is_compiling(self, decoder: Decoder | None) -> bool:
        """Return whether there is anything to wait for; collect it, where that needs the model."""
        # the layers of a ring are not all on the device at once
        is_elsewhere = decoder is None or decoder.ring is not None
        if self._compiler is None or (is_elsewhere and not self._has_collected):
            return False
        if not self._has_collected and not self._has_tried_model:
            assert decoder is not None, "kernels are collected from a model that is here"
            self._has_tried_model = True
            self._collect(lambda: decoder)
        return True

    def _stand_in(self) -> Decoder:
        dtype: torch.dtype = getattr(torch, self._machine.dtype)
        model = self._model
        return stand_in_decoder(model.config, dtype=dtype, device=self._machine.device, region=model.region)

    def _are_there(self, marker: Path) -> bool:
        num_damaged = remove_damaged(marker.parent)
        if num_damaged:
            self._say(f"{counted(num_damaged, 'kernel')} in {marker.parent} cannot be loaded: compiled again")
        return not num_damaged and is_whole(marker)

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
                first_tokens=FIRST_TOKENS,
                numerics=self._machine.numerics,
            )
        except Exception as error:  # whatever it is, the pass that needs a kernel compiles it, or raises by itself
            self.problem = f"{type(error).__name__}: {error}"
            self._say(f"kernels will be compiled as they are needed ({self.problem})")
        else:
            self._has_collected = True
        release_cached(self._machine.device)
