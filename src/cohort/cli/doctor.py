"""``cohort doctor``: what this machine has and what Cohort will use."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.machine.doctor import MachineReport

__all__ = ["doctor"]


_ROWS = (2048, 8192)
_GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="Show the kernel settings of the packed linear for each layer shape on the named GPU instead, and what "
        "numerics: auto takes there, on any machine. With --warm: compile for that GPU, on any machine. NAME is "
        "torch's name for it: 'NVIDIA H200'.",
    ),
]


_WarmOption = Annotated[
    str | None,
    typer.Option(
        "--warm",
        metavar="MODEL|TASK.yaml",
        help="Compile the kernels for a base model now, so that no run waits for them. For a task file, also measure "
        "what its passes take. With --gpu NAME no GPU is needed, and nothing is measured.",
    ),
]


_MeasureOption = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="MODEL",
        help="Measure the fastest kernel settings for a base model on this GPU and keep them for later runs: for GPUs "
        "and models that the table of this version lacks; these change no result. Then what exact numerics cost, by "
        "which numerics: auto decides for runs that begin later.",
    ),
]


def doctor(
    gpu: _GpuOption = None,
    warm: _WarmOption = None,
    measure: _MeasureOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show this machine, and what Cohort will use of it.

    The lines from "backend" on name the kernels: Triton on a GPU, torch elsewhere, and where tile sizes come from.
    """
    with exits(as_json=as_json, debug=debug):
        _require_one(gpu=gpu, warm=warm, measure=measure)
        if warm is not None:
            _warm(warm, gpu=gpu, as_json=as_json)
            return
        if gpu is not None:
            _show_choices(gpu, as_json=as_json)
            return
        if measure is not None:
            _measure(measure, as_json=as_json)
            return
        from cohort.machine.doctor import examine_machine

        report = examine_machine()
        if as_json:
            print(json.dumps(asdict(report), indent=2))
            return
        from rich.console import Console

        from cohort.cli.tables.trial_table import print_facts

        console = Console(highlight=False, soft_wrap=True)
        print_facts(console, _facts(report))
        for warning in report.warnings:
            console.print(f"warning: {warning}", markup=False)


def _require_one(**given: str | None) -> None:
    """Refuse two jobs at once.

    Raises:
        InputError: two options ask for something else than the machine's report.
    """
    from cohort.core.errors import InputError, Problem

    names = [f"--{name}" for name, value in given.items() if value is not None]
    if len(names) > 1 and names != ["--gpu", "--warm"]:
        hint = (
            "Leave --gpu out: kernels are measured on the GPU of this machine."
            if "--gpu" in names
            else "Run --measure first, then --warm, which compiles what was chosen."
        )
        raise InputError(Problem(where=names[-1], found=f"{names[0]} as well", allowed="one of them", hint=hint))


def _measure(model: str, *, as_json: bool) -> None:
    from cohort.cli.terminal.progress import RUN_VIEW, watching
    from cohort.core.clock import SystemClock
    from cohort.engine.train.watching.progress import RunProgress
    from cohort.machine.measured_tiles import measure_tiles
    from cohort.scheduling.cost.exact_ratios import described_ratios, is_cheap, steps_of

    clock = SystemClock()
    begin = clock.monotonic()
    with watching(RUN_VIEW) as watcher:
        report = measure_tiles(
            model,
            say=lambda phase: watcher.update(RunProgress(phase=phase, elapsed_seconds=clock.monotonic() - begin)),
        )
    if as_json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"measured on {report.device}: {report.model}")
    for linear in report.linears:
        shape = f"{linear.in_features} -> {'+'.join(map(str, linear.out_widths))}"
        chosen = ", ".join(f"{name}={value}" for name, value in linear.choice.items()) or "the defaults"
        print(
            f"  {shape}: {linear.best_us:.0f} us on top of the frozen products, {linear.default_us:.0f} by default, "
            f"{linear.now_us:.0f} as runs had it; {chosen}"
        )
    for step in report.exact_steps:
        launched = ", launched kernel by kernel," if step.launched else ""
        print(f"  a step of {step.tokens:,} tokens{launched} in exact numerics: {step.ratio:.3f} times one in fast")
    usual, every = steps_of(report.exact_steps, launched=False), report.exact_steps
    for trials, steps in (("", usual), (" with DoRA", every if len(every) > len(usual) else ())):
        if steps:
            taken = "exact" if is_cheap(steps) else "fast"
            print(f"  numerics: auto is {taken} here from now on{trials}: {described_ratios(steps)}")
    print(f"kept in {report.kept_in}; shapes in the table of this version keep its settings")


def _warm(model_or_task: str, *, gpu: str | None, as_json: bool) -> None:
    from cohort.cli.terminal.progress import RUN_VIEW, watching
    from cohort.core.units import counted, format_duration
    from cohort.engine.warm_caches import warm_caches

    with watching(RUN_VIEW) as watcher:
        report = warm_caches(model_or_task, watcher=watcher, gpu=gpu)
    if as_json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"ready on {report.device}: {report.model}")
    for phase, seconds in report.phases:
        print(f"  {phase}: {format_duration(seconds)}")
    if report.num_kernels is not None:
        counts = counted(report.num_kernels, "kernel") if report.num_kernels else "nothing: the cache held all kernels"
        print(f"compiled {counts}")
        print(
            "Keep the second directory at its path: Triton finds kernels where they were compiled. "
            "Runs measure what passes take."
        )
    elif not report.is_task:
        print("What passes take depends on the rows too; `cohort doctor --warm TASK.yaml` measures them.")
    print(f"kept in {', '.join(report.caches)}")


def _show_choices(gpu: str, *, as_json: bool) -> None:
    from cohort.machine.kernel_choices import (
        auto_numerics_on,
        choices_by_shape,
        measured_gpus,
        require_gpu_to_tell_of,
    )

    require_gpu_to_tell_of(gpu, where="--gpu")
    found = {num_rows: choices_by_shape(gpu, num_rows=num_rows) for num_rows in _ROWS}
    numerics = auto_numerics_on(gpu)
    if as_json:
        print(json.dumps({**found, "numerics: auto": numerics}, indent=2))
        return
    if gpu not in measured_gpus():
        print(f"Nothing was measured on {gpu!r} (measured: {', '.join(measured_gpus())}); it uses the defaults.\n")
    for num_rows, lines in found.items():
        print(f"{num_rows} rows, input width -> output widths of sibling layers:")
        print("".join(f"  {line}\n" for line in lines))
    print(f"numerics: auto is {numerics}")
    print("The settings are explained at TileChoice in src/cohort/kernels/packed_linear/choice/tiles.py.")


def _facts(report: MachineReport) -> dict[str, str]:
    from cohort.core.units import counted, format_bytes

    facts = {
        "system": report.system,
        "python": report.python,
        "cpu": f"{report.cpu}, {report.num_cpus} usable, torch uses {counted(report.torch_threads, 'thread')}",
        "memory": f"{format_bytes(report.memory_total_bytes)}, {format_bytes(report.memory_free_bytes)} available",
        "cuda build": report.cuda_build,
    }
    for gpu in report.gpus:
        facts[f"gpu {gpu.index}"] = (
            f"{gpu.name}, compute capability {gpu.capability}, {format_bytes(gpu.total_bytes)}, "
            f"{format_bytes(gpu.free_bytes)} free, kernels: {gpu.backend}"
        )
    if not report.gpus:
        facts["gpu"] = "none that torch can use"
    facts["will use"] = f"{report.used_device}, model in {report.used_dtype}"
    facts["quantization"] = "; ".join(f"{name}: {text}" for name, text in report.formats.items())
    facts["memory of a run"] = report.used_memory
    facts |= report.used_kernels
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in report.versions.items() if name != "python")
    if report.missing_packages:
        facts["optional, missing"] = ", ".join(report.missing_packages)
    for disk in report.disks:
        facts[f"disk for {disk.purpose}"] = f"{format_bytes(disk.free_bytes)} free in {disk.path}"
    return facts
