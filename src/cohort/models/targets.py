"""Which linears a task adapts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = ["ModuleFilter", "select_linears", "select_parameters"]

ALL_LINEAR = "all-linear"
_LORA = Place(key=("lora",))


@dataclass(frozen=True, kw_only=True)
class ModuleFilter:
    """What narrows the targeted modules down, with PEFT's names and meanings.

    Attributes:
        exclude_modules: Names as for targets, or one regular expression that a path matches as a whole.
        layers_to_transform: The only layers that are adapted; None for all.
        layers_pattern: Names of the list that these are counted in; None for the first number of a path.
    """

    exclude_modules: str | tuple[str, ...] | None = None
    layers_to_transform: tuple[int, ...] | None = None
    layers_pattern: tuple[str, ...] | None = None

    def keeps(self, path: str) -> bool:
        return not self._is_excluded(path) and self._is_in_layers(path)

    def _is_excluded(self, path: str) -> bool:
        if self.exclude_modules is None:
            return False
        if isinstance(self.exclude_modules, str):
            return re.fullmatch(self.exclude_modules, path) is not None
        return any(_has_name(path, name) for name in self.exclude_modules)

    def _is_in_layers(self, path: str) -> bool:
        if self.layers_to_transform is None:
            return True
        layer = self.layer_of(path)
        return layer is not None and layer in self.layers_to_transform

    def layer_of(self, path: str) -> int | None:
        """Return the layer that a path is in; None where it is in none of the lists."""
        # as peft.tuners.tuners_utils.check_target_module_exists: the first number, not an expert's behind it
        lists = self.layers_pattern or (r"[^.]*",)
        found = (re.match(rf"(?:^|.*?\.){name}\.(?P<layer>\d+)\.", path) for name in lists)
        return next((int(match["layer"]) for match in found if match is not None), None)


def _has_name(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def select_linears(
    targets: str | Sequence[str],
    *,
    paths: Iterable[str],
    narrowed: ModuleFilter | None = None,
    parameters: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return those of ``paths`` that ``targets`` select and ``narrowed`` keeps, in their order.

    Args:
        targets: ``all-linear`` (every linear of the layers, never the head), one name or a list of names. As in PEFT a
            name selects the modules whose path is that name or ends with ``.`` and that name. A text that is no such
            name is a regular expression for the whole path.
        paths: Full paths of the adaptable linears.
        parameters: Those of stacked parameters of experts, for a message where a target names one.

    Raises:
        InputError: a name, a layer or an excluded name selects nothing, all such at once; nothing is left; or no name
            is given.
    """
    paths = tuple(paths)
    narrowed = narrowed or ModuleFilter()
    problems = list(_filter_problems(narrowed, paths))
    try:
        chosen = _selected(targets, paths, parameters)
    except InputError as error:
        problems += error.problems
        chosen = ()
    is_expression = isinstance(targets, str) and targets != ALL_LINEAR and not any(_has_name(p, targets) for p in paths)
    if is_expression and narrowed.layers_to_transform is not None:
        problems.append(
            Problem(
                where=_LORA.below("layers_to_transform"),
                found="layers, and target_modules as a regular expression",
                allowed="layers_to_transform with a list of names, as in PEFT",
                hint="Write the layers into the expression, or a list such as [q_proj, v_proj].",
            )
        )
    if problems:
        raise InputError(problems)
    kept = tuple(path for path in chosen if narrowed.keeps(path))
    if not kept:
        raise InputError(
            Problem(
                where=_LORA.below("exclude_modules" if narrowed.exclude_modules else "layers_to_transform"),
                found="every targeted linear left out",
                allowed="at least one adapted linear",
                hint="Exclude fewer modules, or name more layers.",
            )
        )
    return kept


def select_parameters(targets: Sequence[str], *, paths: Sequence[str], architecture: str) -> tuple[str, ...]:
    """Return those of ``paths`` that ``targets`` select, in their order.

    As in PEFT a name selects the parameters whose path is that name or ends with ``.`` and that name, and what narrows
    modules down does not narrow these.

    Args:
        paths: Full paths of the stacked parameters of experts.
        architecture: The model's, for messages.

    Raises:
        InputError: names that select nothing, all of them at once.
    """
    ends = _ends(paths)
    allowed = f"a list of {', '.join(ends)}"
    if targets and not paths:
        allowed = f"no target_parameters: {architecture} has no experts whose weights are stacked in one parameter"
    problems = []
    for place, name in enumerate(targets):
        if any(_has_name(path, name) for path in paths):
            continue
        nearest = difflib.get_close_matches(name, [*ends, *paths], n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "Choose from these."
        problems.append(
            Problem(
                where=_LORA.below("target_parameters", place),
                found=repr(name),
                allowed=allowed,
                hint=hint if paths else "Remove target_parameters, and name the model's linears in target_modules.",
            )
        )
    if problems:
        raise InputError(problems)
    return tuple(path for path in paths if any(_has_name(path, name) for name in targets))


def _selected(targets: str | Sequence[str], paths: tuple[str, ...], parameters: Sequence[str]) -> tuple[str, ...]:
    if targets == ALL_LINEAR or list(targets) == [ALL_LINEAR]:
        return paths
    names = [targets] if isinstance(targets, str) else list(targets)
    suffixes = sorted({path.rsplit(".", 1)[-1] for path in paths})
    allowed = f"{ALL_LINEAR}, or a list of {', '.join(suffixes)}"
    where = _LORA.below("target_modules")
    if not names:
        raise InputError(Problem(where=where, found="an empty list", allowed=allowed, hint="Name at least one module."))
    problems, chosen = [], set[str]()
    for name in names:
        matches = {path for path in paths if _has_name(path, name)}
        if not matches and isinstance(targets, str):
            matches = {path for path in paths if _fully_matches(targets, path)}
        chosen |= matches
        if not matches:
            nearest = difflib.get_close_matches(name, [*suffixes, ALL_LINEAR, *paths], n=3)
            hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "Choose from these."
            if of_experts := _ends(path for path in parameters if _is_expert_name(path, name)):
                hint = f"Experts are stacked in parameters here: write target_parameters: [{', '.join(of_experts)}]."
            problems.append(Problem(where=where, found=repr(name), allowed=allowed, hint=hint))
    if problems:
        raise InputError(problems)
    return tuple(path for path in paths if path in chosen)


def _ends(parameters: Iterable[str]) -> list[str]:
    return sorted({".".join(path.rsplit(".", 3)[-3:]) for path in parameters})


def _is_expert_name(parameter: str, name: str) -> bool:
    """Return whether ``name`` is what a stacked parameter is called, or was when experts were linears."""
    own = parameter.rsplit(".", 1)[-1]
    older = {"gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"), "down_proj": ("w2",)}
    return _has_name(parameter, name) or name.rsplit(".", 1)[-1] in older.get(own, ())


def _fully_matches(expression: str, path: str) -> bool:
    try:
        return re.fullmatch(expression, path) is not None
    except re.error:
        # a name with a slip in it, which is reported as one
        return False


def _filter_problems(narrowed: ModuleFilter, paths: tuple[str, ...]) -> Iterable[Problem]:
    if narrowed.layers_pattern is not None and narrowed.layers_to_transform is None:
        yield Problem(
            where=_LORA.below("layers_pattern"),
            found="a list's name without layers_to_transform",
            allowed="layers_pattern with layers_to_transform",
            hint="Add layers_to_transform: [0, 1], or remove layers_pattern.",
        )
    there = {layer for path in paths if (layer := narrowed.layer_of(path)) is not None}
    if narrowed.layers_to_transform is not None and not there:
        yield Problem(
            where=_LORA.below("layers_pattern"),
            found=repr(list(narrowed.layers_pattern or ())),
            allowed="the name of the model's list of layers: layers",
            hint="Write layers_pattern: layers, or remove the key.",
        )
    missing = [] if not there else sorted(set(narrowed.layers_to_transform or ()) - there)
    if missing:
        yield Problem(
            where=_LORA.below("layers_to_transform"),
            found=", ".join(map(str, missing)),
            allowed=f"layers 0 to {max(there)}",
            hint="Name layers that the model has.",
        )
    if narrowed.exclude_modules is not None:
        excluded = narrowed.exclude_modules
        for name in [excluded] if isinstance(excluded, str) else excluded:
            if isinstance(excluded, str) and any(re.fullmatch(excluded, path) for path in paths):
                continue
            # PEFT's own advice is to exclude the head, which no trial adapts here
            if name != "lm_head" and not any(_has_name(path, name) for path in paths):
                near = difflib.get_close_matches(name, sorted({path.rsplit(".", 1)[-1] for path in paths}), n=1)
                yield Problem(
                    where=_LORA.below("exclude_modules"),
                    found=f"{name!r}, which excludes nothing",
                    allowed="names of adaptable linears",
                    hint=f"Did you mean {near[0]}?" if near else "Remove it.",
                )
