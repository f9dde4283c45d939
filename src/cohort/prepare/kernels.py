"""Compiles the kernels of a task all at once, where this machine has not compiled them before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cohort.adapters.layout import AdapterLayout
from cohort.core.durable_files import write_text
from cohort.core.units import counted
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.compile_ahead import KernelCompiler, cache_marker
from cohort.machine.machine import Machine
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.training.compile_ahead import compile_ahead, kinds_of_adapters
from cohort.training.trial import TrialSpec

__all__ = ["KernelWarmUp"]

# sizes of passes that choose other tiles, from the largest that is planned to a single row's
PASS_TOKENS = (16384, 4096, 1024, 256)


class KernelWarmUp:
    """Workers that start while the model loads, if there is anything to compile."""

    def __init__(
        self,
        machine: Machine,
        *,
        config: DecoderConfig,
        layout: AdapterLayout,
        specs: Sequence[TrialSpec],
        rows: TokenisedRows,
    ) -> None:
        """Look whether the kernels were compiled before; start workers if not."""
        self._layout, self._usual = layout, max(2, round(float(rows.lengths.mean())))
        self._numerics = machine.numerics
        self._adapters = kinds_of_adapters(spec.adapter for spec in specs)
        self._marker = None
        if machine.device.type == "cuda" and describe_backend(machine.device).backend is Backend.TRITON:
            facts = (config, machine.dtype, machine.precision, tuple(sorted(layout.linears)), self._adapters)
            self._marker = cache_marker(*facts, PASS_TOKENS)
        self._compiler = None if self._marker is None or _is_whole(self._marker) else KernelCompiler()

    def run(self, decoder: Decoder, *, say: Callable[[str], None]) -> None:
        """Compile what is missing; nothing happens where there is nothing."""
        if self._compiler is None or self._marker is None:
            return
        with self._compiler as compiler:
            # the layers of a ring are not all on the device at once
            if decoder.ring is not None:
                return
            say("compiling kernels, once for this model, these ranks and this GPU")
            try:
                compiled = compile_ahead(
                    decoder,
                    compiler=compiler,
                    target_linears=self._layout.linears,
                    adapters=self._adapters,
                    usual=self._usual,
                    pass_tokens=PASS_TOKENS,
                    numerics=self._numerics,
                )
            except Exception as error:  # whatever it is, the pass that needs a kernel compiles it, or raises by itself
                say(f"kernels will be compiled as they are needed ({type(error).__name__}: {error})")
                return
        if compiled.num_failed:
            say(
                f"{counted(compiled.num_failed, 'kernel')} will be compiled by the first pass that needs it: "
                f"{compiled.first_error}"
            )
        # none where the workers could not compile: the next start tries again
        if compiled.num_kernels:
            _mark(self._marker)


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
