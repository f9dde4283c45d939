"""The kernels that run on a device and why, in words, for ``cohort doctor`` and the run record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from cohort.core.units import counted
from cohort.kernels.backend import Backend, describe_backend, implementation
from cohort.kernels.packed_linear.choice.own_table import read_own_table, table_path
from cohort.kernels.packed_linear.choice.tiles import (
    TileTableError,
    describe_augmented,
    describe_tiles,
    measured_tiles,
)
from cohort.machine.exact_steps import known_exact_steps, own_exact_steps
from cohort.machine.gpu_kinds import GPU_KINDS, require_known_gpu
from cohort.models.config import AttentionRule, DecoderConfig
from cohort.models.weight_formats import PLAIN
from cohort.scheduling.cost.exact_ratios import MEASURED, described_ratios, gpu_kind, is_cheap, steps_of

__all__ = [
    "attention_name",
    "attention_of",
    "auto_numerics",
    "auto_numerics_on",
    "choices_by_shape",
    "describe_kernels",
    "exact_products",
    "inside_products",
    "linear_groups",
    "measured_gpus",
    "plain_torch",
    "product_name",
    "require_gpu_to_tell_of",
    "tile_lines",
    "tile_source",
]

# linears that read the same input are computed by one launch
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def product_name(device: torch.device) -> str:
    if describe_backend(device).backend is Backend.TRITON:
        return "Triton, grouped over adapters, a fixed number of launches"
    if device.type == "cpu":
        return "torch, per sample (packing changes no bit)"
    return "torch, per adapter (slow: Triton is missing)"


def attention_name(device: torch.device, *, rule: AttentionRule | None = None) -> str:
    """Return which attention runs, for layers of ``rule`` where one is given."""
    suits = rule is None or rule.suits_kernels
    if suits and describe_backend(device).backend is Backend.TRITON:
        return "Triton, ragged over the packed stream, per sequence"
    if rule is not None and rule.cap is not None:
        return f"torch, scores capped at {rule.cap:g}, per sequence, in buckets of equal length"
    return "torch scaled_dot_product_attention, per sequence, in buckets of equal length"


def attention_of(config: DecoderConfig, device: torch.device) -> str:
    """Return which attention a model's layers run."""
    if config.bridged is None:
        return attention_name(device, rule=config.attention_rule(0))
    if device.type == "cpu":
        return "transformers' own, each sequence by itself"
    return f"{attention_name(device)}; what its kernels do not know in plain torch"


def plain_torch(config: DecoderConfig, device: torch.device) -> str:
    """Return what a model computes without kernels on a device that has them; empty where nothing is."""
    # on other backends everything is plain torch, which their names say
    if describe_backend(device).backend is not Backend.TRITON or not config.slow_paths:
        return ""
    return f"; in plain torch: {'; '.join(config.slow_paths)}"


def tile_source(device: torch.device) -> str:
    """Return where the tiles of the packed linear's kernels come from."""
    if describe_backend(device).backend is not Backend.TRITON:
        return f"none needed (measured for {', '.join(measured_tiles())}: see cohort doctor --gpu)"
    name = torch.cuda.get_device_name(device)
    try:
        own = read_own_table(name)
    except TileTableError as error:
        own, damage = [], f"; {error}: `cohort doctor --measure MODEL` writes it again"
    else:
        damage = ""
    found = []
    for origin, rows in ((f"on {name}", measured_tiles().get(name, [])), (f"here ({table_path(name)})", own)):
        if count := len({(row["in_features"], tuple(row["out_widths"])) for row in rows}):
            found.append(f"measured {origin} for {counted(count, 'shape')} of linears")
    if not found:
        return f"defaults: nothing was measured on {name} (`cohort doctor --measure MODEL` measures){damage}"
    return f"{', '.join(found)}, defaults for others{damage}"


def augmented_products(device: torch.device) -> str:
    """Return for which linears B goes behind the frozen weight, so that one product gives the LoRA term as well."""
    if describe_backend(device).backend is not Backend.TRITON:
        return "none needed"
    return describe_augmented(torch.cuda.get_device_name(device))


def inside_products(device: torch.device) -> str:
    """Return which frozen product can take the LoRA term inside, or why none can."""
    if describe_backend(device).backend is not Backend.TRITON:
        return "none needed"
    return str(implementation("packed_linear", Backend.TRITON).describe_inside(device))


def exact_products(device: torch.device) -> str:
    """Return which product ``numerics: exact`` takes, or why there is none."""
    found = describe_backend(device)
    if device.type == "cpu":
        return "always: a CPU has no other way"
    if found.backend is not Backend.TRITON:
        return f"not here: {found.reason}"
    return str(implementation("exact_product", Backend.TRITON).describe(device))


def auto_numerics(device: torch.device) -> str:
    """Return for which base models ``numerics: auto`` is exact on ``device``, as far as that was measured."""
    if device.type == "cpu":
        return "exact, as always on a CPU"
    if describe_backend(device).backend is not Backend.TRITON:
        return "fast: exact needs Triton's kernels"
    return auto_numerics_on(torch.cuda.get_device_name(device))


def auto_numerics_on(device_name: str) -> str:
    """Return the same for a GPU that need not be here, by the driver's name for it or its short one."""
    gpu = gpu_kind(device_name)
    steps = (*own_exact_steps(gpu), *(step for step in MEASURED if step.gpu == gpu))
    found = []
    for widths, kept in dict.fromkeys((step.widths, step.quantization) for step in steps):
        known = known_exact_steps(gpu=gpu, widths=widths, quantization=kept)
        usual = steps_of(known, launched=False)
        if not usual:
            continue
        taken = "exact" if is_cheap(usual) else "fast"
        weights = "" if kept == PLAIN.name else f" in {kept}"
        wide = f"{widths.hidden_size:,} and {widths.intermediate_size:,}{weights}"
        launched = "" if is_cheap(known) else f", but fast with DoRA: {described_ratios(known)}"
        but = launched if is_cheap(usual) else ""
        found.append(f"{taken} for layers of widths {wide}: {described_ratios(usual)}{but}")
    others = "fast for others" if found else f"fast: what exact costs was not measured on {gpu}"
    return "; ".join([*found, f"{others} (`cohort doctor --measure MODEL` measures one)"])


def describe_kernels(device: torch.device) -> dict[str, str]:
    return {
        "backend": str(describe_backend(device)),
        "lora products": product_name(device),
        "attention": f"{attention_name(device)}; with capped scores (Gemma 2) plain torch",
        "tile table": tile_source(device),
        "augmented products": augmented_products(device),
        "products with the term inside": inside_products(device),
        "exact numerics": exact_products(device),
        "numerics: auto": auto_numerics(device),
    }


def linear_groups(
    linears: Mapping[str, tuple[int, int]], *, targets: Sequence[str]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the distinct ``(in_features, out_widths)`` of adapted linears, siblings that share their input together.

    Args:
        linears: ``(in_features, out_features)`` by full path.
    """
    groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for path in targets:
        parent, _, leaf = path.rpartition(".")
        place = next((index for index, names in enumerate(_SIBLINGS) if leaf in names), -1)
        key = (f"{parent}.{leaf}", place) if place < 0 else (parent, place)
        groups.setdefault(key, []).append(linears[path])
    shapes = ((found[0][0], tuple(width for _, width in found)) for found in groups.values())
    # every layer has the same shapes: each is named once
    return list(dict.fromkeys(shapes))


def tile_lines(device: torch.device, groups: Sequence[tuple[int, tuple[int, ...]]], *, num_rows: int) -> list[str]:
    """Return one line for each shape of linear: its tiles and whether they were measured; none without Triton.

    Args:
        num_rows: Rows of a full stream.
    """
    if describe_backend(device).backend is not Backend.TRITON:
        return []
    return describe_tiles(torch.cuda.get_device_name(device), groups, num_rows=num_rows)


def measured_gpus() -> list[str]:
    """Return the GPUs that the table of tiles knows, as torch names them."""
    return sorted(measured_tiles())


def require_gpu_to_tell_of(gpu: str, *, where: str) -> None:
    """Refuse a name of no GPU: what would be said of it is true of none.

    Args:
        gpu: A name as torch gives it: of a kind that is known, or of a GPU that is here or was measured here.
        where: How messages name the option.

    Raises:
        InputError: there is no such GPU, as far as is known.
    """
    here = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    # not Path.is_file, which raises for a name that no file can have
    if os.path.isfile(table_path(gpu)):
        here.append(gpu)
    names = dict.fromkeys([*measured_gpus(), *(kind.name for kind in GPU_KINDS), *here])
    hint = "Of other GPUs nothing is known: run `cohort doctor` there."
    require_known_gpu(gpu, where=where, names=list(names), found="which is not a GPU that is known", hint=hint)


def choices_by_shape(gpu: str, *, num_rows: int) -> list[str]:
    """Return one line for each shape of linear in the table of tiles: what is chosen on the GPU called ``gpu``.

    The table alone decides, so the GPU need not be here. A GPU without measurements gets the defaults.

    Args:
        num_rows: Rows of a stream; some choices begin at a number of rows.
    """
    # shapes measured on any GPU: those that a user's model may have
    shapes = [(row["in_features"], tuple(row["out_widths"])) for rows in measured_tiles().values() for row in rows]
    return describe_tiles(gpu, sorted(set(shapes)), num_rows=num_rows)
