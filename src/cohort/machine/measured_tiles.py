"""``cohort doctor --measure``: the settings of kernels for a base model on this GPU, and what exact numerics cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cohort.core.errors import InputError, Problem
from cohort.core.units import counted
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.packed_linear.choice.own_table import table_path
from cohort.kernels.packed_linear.choice.tiles import keep_measured
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.machine.kernel_choices import linear_groups
from cohort.machine.measured_numerics import measure_exact_steps
from cohort.machine.writable_directory import require_writable
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.source import find_model
from cohort.models.weight_formats import PLAIN
from cohort.scheduling.cost.exact_ratios import ExactStep

if TYPE_CHECKING:
    from cohort.kernels.packed_linear.choice.measuring import MeasuredLinear

__all__ = ["TileReport", "measure_tiles"]


@dataclass(frozen=True, kw_only=True)
class TileReport:
    """What was measured.

    Attributes:
        model, device: For which base model, on which GPU.
        linears: One for each shape of linear.
        exact_steps: What steps in exact numerics cost here; none where no step fits, or the model has no exact form.
        kept_in: The file that runs read from now on.
    """

    model: str
    device: str
    linears: tuple[MeasuredLinear, ...]
    exact_steps: tuple[ExactStep, ...]
    kept_in: str


def measure_tiles(model: str, *, say: Callable[[str], None]) -> TileReport:
    """Measure the tiles of all linears of ``model``, a hub id or a directory, and keep them for later runs.

    Then what exact numerics cost, by which ``numerics: auto`` decides for runs that begin later. No weights are read.

    Raises:
        InputError: there is no such model, no GPU that kernels are compiled for, or the cache cannot be written.
    """
    config = read_config(find_model(model))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend = describe_backend(device)
    if backend.backend is not Backend.TRITON:
        raise InputError(
            Problem(
                where="--measure",
                found=f"no GPU that kernels are compiled for: {backend.reason}",
                allowed="a machine with a GPU and Triton",
                hint="Run it on the machine that trains; here nothing has settings to measure.",
            )
        )
    name = torch.cuda.get_device_name(device)
    require_writable(table_path(name).parent, hint="Set COHORT_CACHE_DIR to a directory on a disk with room.")
    # Triton is an optional package
    from cohort.kernels.packed_linear.choice.measuring import launch_candidates, measure_linear

    shapes = linear_shapes(config)
    groups = linear_groups(shapes, targets=list(shapes))
    say(f"compiling candidates for {counted(len(groups), 'shape')} of linears")
    with KernelCompiler() as compiler:
        with compiler.collecting():
            for in_features, out_widths in groups:
                launch_candidates(in_features, out_widths, device=device)
        compiler.wait()
    found: list[MeasuredLinear] = []
    for in_features, out_widths in groups:
        say(f"measuring {in_features} -> {'+'.join(map(str, out_widths))}")
        found.append(measure_linear(in_features, out_widths, device=device))
        torch.cuda.empty_cache()
        # one at a time: what is measured is kept, whatever comes after
        keep_measured(name, [found[-1].row])
    # last: steps take the tiles that were chosen
    is_native = config.bridged is None
    has_form = is_native and config.stored_quantization == PLAIN.name and not config.pads_attention
    steps = measure_exact_steps(config, device=device, say=say) if has_form else ()
    return TileReport(model=model, device=name, linears=tuple(found), exact_steps=steps, kept_in=str(table_path(name)))
