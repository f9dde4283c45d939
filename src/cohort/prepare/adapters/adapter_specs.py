"""From a task and the hyperparameters of one trial to its adapter, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cohort.adapters.expert_names import parameter_of
from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.adapters.spec import AdapterSpec, VariantError, changes_base
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.errors import InputError, Problem
from cohort.models.targets import ModuleFilter
from cohort.prepare.adapters.expert_checks import expert_problems
from cohort.prepare.adapters.start_checks import require_scale_of_start
from cohort.prepare.adapters.vector_checks import vector_problems
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile
from cohort.training.optimizers.declaration import refused_variants

__all__ = ["adapter_spec", "largest_adapter", "module_filter", "variant_problems"]


def adapter_spec(
    task: TaskFile,
    values: Mapping[str, Any],
    *,
    saved: SavedModules | None = None,
    start: AdapterStart | None = None,
) -> AdapterSpec:
    """Return the adapter of a trial with these hyperparameters; what an old record lacks is PEFT's default.

    Args:
        saved: What :func:`~cohort.prepare.adapters.saved_checks.saved_modules` returns of the task.
        start: The adapter that its training begins with; None for drawn weights, or where it is not trained.

    Raises:
        InputError: two of the values exclude each other.
    """
    assert (saved is None) == (not task.lora.modules_to_save), "a task's modules take rank rows of its model"
    vectors = _vectors(task, values)
    try:
        spec = AdapterSpec(
            r=int(values["r"]),
            # VeRA has none, and its record shows none
            lora_alpha=1.0 if vectors else float(values["lora_alpha"]),
            lora_dropout=float(values["lora_dropout"]),
            use_rslora=bool(values.get("use_rslora", False)),
            init_lora_weights=str(values.get("init_lora_weights", "true")),
            use_dora=bool(values.get("use_dora", False)),
            use_vera=vectors,
            use_bdlora=task.block_diagonal(int(values.get("nblocks", 1))),
            rank_pattern=tuple(task.lora.rank_pattern.items()),
            alpha_pattern=tuple(task.lora.alpha_pattern.items()),
            saved=saved,
            start=start,
        )
        require_scale_of_start(spec)
    except VariantError as error:
        raise InputError(
            Problem(
                where=task.where("lora.init_lora_weights" if start is None else "lora.adapter_name_or_path"),
                found=str(error),
                allowed="hyperparameters of a trial that go together",
                hint="Change one of them.",
            )
        ) from error
    return spec


def _vectors(task: TaskFile, values: Mapping[str, Any]) -> VectorAdapter | None:
    if not values.get("use_vera", False):
        return None
    return VectorAdapter(
        projection_prng_key=int(values["projection_prng_key"]),
        d_initial=float(values["d_initial"]),
        save_projection=task.lora.save_projection,
    )


def module_filter(task: TaskFile) -> ModuleFilter:
    lora = task.lora
    return ModuleFilter(
        exclude_modules=lora.exclude_modules,
        layers_to_transform=lora.layers_to_transform,
        layers_pattern=lora.layers_pattern,
    )


def largest_adapter(task: TaskFile, adapter: AdapterSpec, *, r: int) -> AdapterSpec:
    """Return an adapter that takes as much memory as any trial's with rank ``r`` may; it is never trained."""
    plain = replace(adapter, r=r, init_lora_weights="true", use_dora=False, use_vera=None, use_bdlora=None)
    found = [replace(adapter, r=r)]
    if any(changes_base(str(name)) for name in possible_values(task, "init_lora_weights")):
        found.append(replace(plain, init_lora_weights="pissa", lora_dropout=0.0))
    if True in possible_values(task, "use_dora"):
        found.append(replace(plain, use_dora=True))
    if True in possible_values(task, "use_vera"):
        found.append(replace(plain, use_vera=VectorAdapter(), rank_pattern=(), alpha_pattern=()))
    return max(found, key=lambda own: own.num_rows)


def variant_problems(task: TaskFile, *, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    """Yield what no trial of the task could be trained with.

    Args:
        linears: ``(in_features, out_features)`` of the adapted linears by full path.
    """
    yield from _unused_patterns(task, tuple(linears))
    from_base = [str(name) for name in possible_values(task, "init_lora_weights") if changes_base(str(name))]
    if from_base and task.quantization != "none":
        yield Problem(
            where=task.where(_place(task, "init_lora_weights")),
            found=f"{from_base[0]} on a base model in {task.quantization}",
            allowed=f"{from_base[0]} with quantization: none; as in PEFT, its factors are those of the plain weight",
            hint="Write init_lora_weights: true, or quantization: none.",
        )
    if from_base:
        yield from _too_few_singular_values(task, from_base[0], linears)
    yield from vector_problems(task, linears=linears)
    yield from expert_problems(task)
    names = ("init_lora_weights", "lora_dropout", "use_dora", "use_vera", "nblocks", "optim", "loraplus_lr_ratio")
    if any(name in text for text in task.search.constraints for name in names):
        # the task itself says which go together; a trial that does not is refused when it is proposed
        return
    yield from _exclusions(task, from_base)


def _exclusions(task: TaskFile, from_base: Sequence[str]) -> Iterator[Problem]:
    """Yield the pairs of variants that some trial may have and that no adapter can have together."""
    if from_base and any(float(value) > 0 for value in possible_values(task, "lora_dropout")):
        yield Problem(
            where=task.where(_place(task, "init_lora_weights")),
            found=f"{from_base[0]} with lora_dropout above 0",
            allowed=f"{from_base[0]} without dropout: the part of the base weight that it takes out is not dropped, "
            "and one adapter has one dropout",
            hint="Write lora_dropout: 0, or init_lora_weights: true.",
        )
    has_dora = True in possible_values(task, "use_dora")
    has_blocks = any(task.block_diagonal(int(n)) is not None for n in possible_values(task, "nblocks"))
    others = [name for name in map(str, possible_values(task, "init_lora_weights")) if name != "true"]
    has_vectors = True in possible_values(task, "use_vera")
    whole = bool(task.lora.modules_to_save)
    ratios = [float(ratio) for ratio in possible_values(task, "loraplus_lr_ratio")]
    in_use = {"use_dora": has_dora, "use_vera": has_vectors, "modules_to_save": whole, "use_bdlora": has_blocks}
    optimizers = [str(name) for name in possible_values(task, "optim")]
    present = [key for key, is_used in in_use.items() if is_used]
    pairs = (
        *(("optim", True, found) for found in refused_variants(optimizers, present=present)),
        ("use_dora", has_dora and from_base, f"use_dora with init_lora_weights {', '.join(from_base)}"),
        ("use_dora", has_dora and has_blocks, "use_dora with use_bdlora"),
        ("init_lora_weights", has_blocks and others, f"init_lora_weights {', '.join(others)} with use_bdlora"),
        ("rank_pattern", has_blocks and task.lora.rank_pattern, "rank_pattern with use_bdlora"),
        ("alpha_pattern", has_blocks and task.lora.alpha_pattern, "alpha_pattern with use_bdlora"),
        ("use_vera", has_vectors and has_dora, "use_vera with use_dora"),
        ("use_vera", has_vectors and has_blocks, "use_vera with use_bdlora"),
        ("use_vera", has_vectors and others, f"use_vera with init_lora_weights {', '.join(others)}"),
        ("rank_pattern", has_vectors and task.lora.rank_pattern, "rank_pattern with use_vera"),
        ("alpha_pattern", has_vectors and task.lora.alpha_pattern, "alpha_pattern with use_vera"),
        (
            "loraplus_lr_ratio",
            has_vectors and set(ratios) != {1.0},
            "loraplus_lr_ratio, a rate of B, with use_vera, which trains neither A nor B",
        ),
        ("modules_to_save", whole and from_base, f"modules_to_save with init_lora_weights {', '.join(from_base)}"),
        ("modules_to_save", whole and has_vectors, "modules_to_save with use_vera"),
        (
            "loraplus_lr_ratio",
            whole and set(ratios) != {1.0},
            "loraplus_lr_ratio with modules_to_save, whose tables have one rate",
        ),
    )
    for name, is_possible, found in pairs:
        if is_possible:
            yield Problem(
                where=task.where(_place(task, name)),
                found=found,
                allowed="one of them in each trial",
                hint="Choose one of them, or say with search.constraints which go together.",
            )


def _too_few_singular_values(task: TaskFile, method: str, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    r = max(int(value) for value in possible_values(task, "r"))
    widest = AdapterSpec(r=r, lora_alpha=1.0, rank_pattern=tuple(task.lora.rank_pattern.items()))
    short = {name: min(shape) for name, shape in linears.items() if widest.rank_of(name) > min(shape)}
    if short:
        name = min(short, key=lambda name: short[name])
        yield Problem(
            where=task.where(_place(task, "r")),
            found=f"r {widest.rank_of(name)} with init_lora_weights {method}",
            allowed=f"at most {short[name]}, the singular values of {name}",
            hint=f"Write r of at most {short[name]}, a rank_pattern for it, or leave it out of target_modules.",
        )


def _unused_patterns(task: TaskFile, linears: Sequence[str]) -> Iterator[Problem]:
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(task.lora, key):
            probe = AdapterSpec(r=1, lora_alpha=1.0, rank_pattern=((pattern, 2),))
            if not any(probe.rank_of(name) == 2 for name in linears):
                names = ", ".join(sorted({parameter_of(name).rsplit(".", 1)[-1] for name in linears}))
                yield Problem(
                    where=task.where(f"lora.{key}"),
                    found=f"{pattern!r}, which fits no adapted linear",
                    allowed=f"a regular expression that the path of one ends with; there are {names}",
                    hint="Correct it, or remove it.",
                )


def _place(task: TaskFile, name: str) -> str:
    if name in task.search.space:
        return f"search.space.{name}"
    return f"{SECTION_OF.get(name, 'lora')}.{name}"
