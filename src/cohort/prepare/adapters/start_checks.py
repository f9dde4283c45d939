"""Whether the trials of a task can begin with the adapter that ``lora.adapter_name_or_path`` names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, PeftAdapter, read_adapter
from cohort.adapters.spec import AdapterSpec, VariantError
from cohort.core.errors import InputError, Problem
from cohort.models.source import find_local_model
from cohort.prepare.fingerprints import model_fingerprint
from cohort.prepare.objectives import task_objective
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile
from cohort.tuning.parameters import Choice, Conditional, MultipleOf, Parameter

__all__ = ["other_base_problem", "read_start", "require_scale_of_start", "start_notes"]

_KEY = "lora.adapter_name_or_path"
# what a trial has under each name is in its own section or in the search space
_PLAIN = {"use_dora": False, "use_vera": False, "nblocks": 1, "init_lora_weights": "true"}


def read_start(
    task: TaskFile, *, linears: Mapping[str, tuple[int, int]], model_directory: Path
) -> tuple[AdapterStart | None, list[Problem]]:
    """Return the adapter that each trial begins with, and why trials cannot; None where there is none or a problem.

    No weight of the model is read.

    Args:
        linears: ``(in_features, out_features)`` of the adapted linears by full path.
        model_directory: Files of the base model.
    """
    if task.lora.adapter_name_or_path is None:
        return None, []
    directory = Path(task.lora.adapter_name_or_path)
    problems = list(_excluded(task))
    try:
        adapter = read_adapter(directory)
        sha256 = adapter_digest(directory)
    except InputError as error:
        where = task.where(_KEY)
        unread = [replace(own, where=where, found=f"{own.where}: {own.found}") for own in error.problems]
        return None, [*problems, *unread]
    # what is not plain LoRA has other tensors, and other values mean something else there
    problems += list(_not_plain(task, adapter)) or [
        *_misfits(task, adapter, linears),
        *_other_values(task, adapter.spec),
    ]
    other = other_base_problem(task, _KEY, directory, model_directory=model_directory)
    problems += [] if other is None else [other]
    if problems:
        return None, problems
    spec = adapter.spec
    return (
        AdapterStart(
            directory=str(directory),
            sha256=sha256,
            r=spec.r,
            lora_alpha=spec.lora_alpha,
            use_rslora=spec.use_rslora,
        ),
        [],
    )


def start_notes(start: AdapterStart | None) -> Iterator[str]:
    """Yield where trials begin, if it is not with drawn weights."""
    if start is not None:
        yield f"every trial begins with the weights of {start.directory} (SHA-256 {start.sha256[:12]})"


def require_scale_of_start(spec: AdapterSpec) -> None:
    """Refuse a trial with another scale than the adapter that it begins with.

    Raises:
        VariantError: ``lora_alpha`` or ``use_rslora`` differ.
    """
    start = spec.start
    if start is not None and (spec.lora_alpha, spec.use_rslora) != (start.lora_alpha, start.use_rslora):
        raise VariantError(
            f"lora_alpha {spec.lora_alpha:g} and use_rslora {str(spec.use_rslora).lower()} with an adapter of "
            f"lora_alpha {start.lora_alpha:g} and use_rslora {str(start.use_rslora).lower()}"
        )


def other_base_problem(task: TaskFile, key: str, directory: Path, *, model_directory: Path) -> Problem | None:
    """Return that an adapter was trained on another base model than the task's, where both are on this machine.

    Args:
        key: What names the adapter.
        directory: The adapter's, which has a configuration.
        model_directory: Files of the task's base model.
    """
    written = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
    # by content where both are here: two models of one shape differ in nothing else
    own = find_local_model(written) if isinstance(written, str) and written else None
    if own is None or own == model_directory or model_fingerprint(own) == model_fingerprint(model_directory):
        return None
    return Problem(
        where=task.where(key),
        found=f"an adapter of another base model: {written}",
        allowed=f"an adapter of {task.model_name_or_path}",
        hint="Name an adapter that was trained on this model, or remove the key.",
    )


def _excluded(task: TaskFile) -> Iterator[Problem]:
    """Yield what of a task does not go with a given adapter."""
    for name, plain in _PLAIN.items():
        if others := [value for value in (*possible_values(task, name), *_default(task, name)) if value != plain]:
            shown = "use_bdlora" if name == "nblocks" else f"{name}: {str(others[0]).lower()}"
            place = f"search.space.{name}" if name in task.search.space else f"lora.{shown.partition(':')[0]}"
            yield _problem(
                task,
                place,
                found=f"{shown} with adapter_name_or_path",
                allowed="plain LoRA, whose weights are those of the adapter's files",
                hint="Remove it, or remove adapter_name_or_path.",
            )
    for name in ("rank_pattern", "alpha_pattern", "modules_to_save", "target_parameters"):
        if getattr(task.lora, name):
            yield _problem(
                task,
                f"lora.{name}",
                found=f"{name} with adapter_name_or_path",
                allowed="an adapter with one rank and one scale on linear layers",
                hint=f"Remove {name}, or remove adapter_name_or_path.",
            )
    base_is_reference = task_objective(task).needs_reference and task.objective.reference_adapter is None
    betas = [float(beta) for beta in possible_values(task, "beta")] if "beta" in task.search.space else []
    beta = max(betas, default=float(task.objective.values.get("beta") or 0.0))
    if base_is_reference or (task_objective(task).samples_answers and beta > 0):
        searched = "beta" in task.search.space
        with_beta = "" if base_is_reference else f" and beta {beta:g}"
        yield _problem(
            task,
            "search.space.beta" if searched and not base_is_reference else "objective",
            found=f"{task.objective.type}{with_beta} with adapter_name_or_path, where the reference is the base model "
            "and not the adapter that trials begin with",
            allowed="objectives without a reference"
            + (", or objective.reference_adapter, the adapter itself" if base_is_reference else ": beta: 0"),
            hint=f"Write objective.reference_adapter: {task.lora.adapter_name_or_path}."
            if base_is_reference
            else "Write beta: 0, or remove adapter_name_or_path.",
        )


def _not_plain(task: TaskFile, adapter: PeftAdapter) -> Iterator[Problem]:
    """Yield what an adapter has that plain LoRA has not."""
    spec = adapter.spec
    found = {
        "VeRA": adapter.projections is not None,
        "use_dora": spec.use_dora,
        "use_bdlora": spec.use_bdlora is not None,
        "rank_pattern or alpha_pattern": spec.has_patterns,
        "modules_to_save": spec.saved is not None,
    }
    if present := [name for name, is_there in found.items() if is_there]:
        allowed = "a plain LoRA adapter, with one rank and one scale on linear layers"
        yield _problem(
            task, _KEY, found=f"an adapter with {', '.join(present)}", allowed=allowed, hint="Name another adapter."
        )
    elif not all(bool(torch.isfinite(tensor).all()) for tensor in adapter.tensors.values()):
        allowed = "finite weights"
        yield _problem(task, _KEY, found="an adapter with NaN or infinity", allowed=allowed, hint="Name another one.")


def _misfits(task: TaskFile, adapter: PeftAdapter, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    """Yield which linears the adapter and the task do not share, or have in other widths."""
    theirs = set(adapter.modules)
    for only, whose, other in (
        (sorted(theirs - set(linears)), "the adapter", "the task"),
        ([name for name in linears if name not in theirs], "the task", "the adapter"),
    ):
        if only:
            more = f" and {len(only) - 1} more" if len(only) > 1 else ""
            yield _problem(
                task,
                "lora.target_modules",
                found=f"{only[0]}{more}, which {whose} adapts and {other} does not",
                allowed=f"the linears of {task.lora.adapter_name_or_path}: {_names(adapter.modules)}",
                hint=f"Write target_modules: [{_names(adapter.modules)}], or name an adapter of these linears.",
            )
    for name in (name for name in adapter.modules if name in linears):
        a_rK, b_Nr = adapter.factors(name, shape=linears[name])
        (in_features, out_features), r = linears[name], adapter.spec.r
        if a_rK.shape != (r, in_features) or b_Nr.shape != (out_features, r):
            yield _problem(
                task,
                _KEY,
                found=f"A {tuple(a_rK.shape)} and B {tuple(b_Nr.shape)} of {name}",
                allowed=f"A {(r, in_features)} and B {(out_features, r)}, as the base model's linear is wide",
                hint="Name an adapter that was trained on this base model.",
            )
            # they have one cause: an adapter of another model misfits in every linear
            return


def _names(modules: tuple[str, ...]) -> str:
    return ", ".join(sorted({name.rsplit(".", 1)[-1] for name in modules}))


def _other_values(task: TaskFile, spec: AdapterSpec) -> Iterator[Problem]:
    """Yield the hyperparameters that have another value in some trial than in the adapter."""
    for name, own in (("r", spec.r), ("lora_alpha", spec.lora_alpha), ("use_rslora", spec.use_rslora)):
        searched = name in task.search.space
        tried = [*possible_values(task, name), *_multiples(task, name, r=spec.r)]
        others = [value for value in (*tried, *_default(task, name, r=spec.r)) if value != own]
        if others:
            in_space = searched and others[0] in tried
            shown, written = _shown(own), _shown(others[0])
            yield _problem(
                task,
                f"search.space.{name}" if in_space else f"lora.{name}",
                found=f"{name}: {written} with adapter_name_or_path",
                allowed=f"{shown}, as in {task.lora.adapter_name_or_path}: with another value trials would begin as "
                "another model",
                hint=f"Write lora.{name}: {shown}" + (f", and take {name} out of search.space." if searched else "."),
            )


def _shown(value: float | str | bool) -> str:  # noqa: FBT001 - a value of a task file
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"


def _default(task: TaskFile, name: str, *, r: int = 1) -> Iterator[int | float | str | bool]:
    """Yield what a trial that searches nothing has: a person may add one, and the report trains one."""
    value = task.searchable_defaults()[name]
    yield value.of(r) if isinstance(value, MultipleOf) else value


def _multiples(task: TaskFile, name: str, *, r: int) -> list[int | float]:
    """Return the values of a search space that are written as a multiple of r."""

    def found(parameter: Parameter) -> Iterator[MultipleOf]:
        if isinstance(parameter, Conditional):
            yield from found(parameter.parameter)
            if isinstance(parameter.otherwise, MultipleOf):
                yield parameter.otherwise
        elif isinstance(parameter, Choice):
            yield from (value for value in parameter.values if isinstance(value, MultipleOf))
        elif isinstance(parameter, MultipleOf):
            yield parameter

    return [value.of(r) for value in found(task.search_space().parameters[name])]


def _problem(task: TaskFile, key: str, *, found: str, allowed: str, hint: str) -> Problem:
    return Problem(where=task.where(key), found=found, allowed=allowed, hint=hint)
