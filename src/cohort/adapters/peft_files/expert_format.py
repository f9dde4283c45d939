"""Adapters on experts in PEFT's files: one A and one B for all experts of a stacked parameter.

PEFT wraps the module that holds the parameters once for each of them, the first in the module innermost: of a block
whose ``gate_up_proj`` and ``down_proj`` are adapted, ``experts.base_layer.lora_A.weight`` is of the first and
``experts.lora_A.weight`` of the second. Which parameters they are stands in ``target_parameters`` alone.

Shapes:  E experts · r rank · K input width · N output width · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.expert_names import expert_name, parameters_among
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_names import LORA_A, LORA_B, PREFIX
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem

__all__ = ["expert_tensors", "shortest_target_parameters", "with_single_experts"]

_WRAPPER = ".base_layer"
# the order in which every block of transformers has them
_ORDER = ("gate_up_proj", "up_proj", "down_proj")


def expert_tensors(layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor) -> dict[str, Tensor]:
    """Return A [E * r, K] and B [N, r * E] of every stacked parameter under PEFT's names, float32 and contiguous."""
    blocks: dict[str, list[tuple[str, int]]] = {}
    for parameter, num_experts in parameters_among(layout.linears).items():
        blocks.setdefault(parameter.rpartition(".")[0], []).append((parameter, num_experts))
    tensors = {}
    for module, parameters in blocks.items():
        parameters.sort(key=lambda found: _place(found[0]))
        for wrappers, (parameter, num_experts) in zip(range(len(parameters) - 1, -1, -1), parameters, strict=True):
            rows = weights_rD[: spec.rank_of(parameter)]
            columns = [layout.columns[expert_name(parameter, expert)] for expert in range(num_experts)]
            a_ErK = torch.stack([rows[:, own.a].float() for own in columns])
            b_NrE = torch.stack([rows[:, own.b].T.float() for own in columns], dim=-1)
            path = f"{PREFIX}{module}{_WRAPPER * wrappers}"
            tensors[f"{path}{LORA_A}"] = a_ErK.flatten(0, 1)
            tensors[f"{path}{LORA_B}"] = b_NrE.flatten(1, 2)
    return tensors


def with_single_experts(
    tensors: Mapping[str, Tensor], spec: AdapterSpec, config: Mapping[str, Any], *, where: str
) -> dict[str, Tensor]:
    """Return the tensors of a file with A [r, K] and B [N, r] of each expert in place of those of stacked parameters.

    Raises:
        InputError: ``target_parameters`` does not say what a tensor is of, or its shape is that of no number of
            experts.
    """
    targets = [str(name) for name in config.get("target_parameters") or ()]
    if not targets:
        return dict(tensors)
    found: dict[str, Tensor] = {}
    read = set[str]()
    for module, depths in _modules(tensors).items():
        names = _parameters_of(module, targets)
        if not names or _is_linear(module, tensors, spec):
            continue
        if len(names) != len(depths):
            raise _unreadable(
                where, f"{len(depths)} pairs of factors of {module} with target_parameters {', '.join(targets)}"
            )
        for wrappers, name in zip(sorted(depths, reverse=True), names, strict=True):
            path, parameter = f"{PREFIX}{module}{_WRAPPER * wrappers}", f"{module}.{name}"
            a, b = tensors[f"{path}{LORA_A}"], tensors[f"{path}{LORA_B}"]
            read |= {f"{path}{LORA_A}", f"{path}{LORA_B}"}
            found |= _by_expert(parameter, a, b, r=spec.rank_of(parameter), where=where)
    return {name: tensor for name, tensor in tensors.items() if name not in read} | found


def _is_linear(module: str, tensors: Mapping[str, Tensor], spec: AdapterSpec) -> bool:
    """Return whether a module's factors are those of one linear: it may have the name of a targeted parameter's end."""
    stored = tensors.get(f"{PREFIX}{module}{LORA_A}")
    return stored is not None and len(stored) == spec.rank_of(module)


def _modules(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the adapted modules of a file, and how many wrappers stand around each pair of factors of it."""
    found: dict[str, list[int]] = {}
    for name in sorted(tensors):
        if not name.endswith(LORA_A):
            continue
        path, wrappers = name[len(PREFIX) : -len(LORA_A)], 0
        while path.endswith(_WRAPPER):
            path, wrappers = path.removesuffix(_WRAPPER), wrappers + 1
        found.setdefault(path, []).append(wrappers)
    return found


def _parameters_of(module: str, targets: Sequence[str]) -> list[str]:
    """Return the names of a module's targeted parameters, the innermost first."""
    holders = ((*target.rpartition(".")[::2],) for target in targets)
    names = {name for holder, name in holders if not holder or module == holder or module.endswith(f".{holder}")}
    return sorted(names & set(_ORDER), key=_place)


def _place(parameter: str) -> int:
    return _ORDER.index(parameter.rpartition(".")[2])


def _by_expert(parameter: str, a: Tensor, b: Tensor, *, r: int, where: str) -> dict[str, Tensor]:
    num_experts, rest = divmod(len(a), r)
    if rest or b.shape[1] != len(a):
        raise _unreadable(where, f"A {tuple(a.shape)} and B {tuple(b.shape)} of {parameter} with rank {r}")
    a_ErK, b_NrE = a.view(num_experts, r, -1), b.view(-1, r, num_experts)
    found: dict[str, Tensor] = {}
    for expert in range(num_experts):
        name = f"{PREFIX}{expert_name(parameter, expert)}"
        found |= {f"{name}{LORA_A}": a_ErK[expert], f"{name}{LORA_B}": b_NrE[:, :, expert]}
    return found


def _unreadable(where: str, found: str) -> InputError:
    return InputError(
        Problem(
            where=where,
            found=found,
            allowed=f"for each of a block's {', '.join(_ORDER)} in target_parameters one A [experts * r, K] and one "
            "B [N, r * experts]",
            hint="Save the adapter again with PEFT's save_pretrained.",
        )
    )


def shortest_target_parameters(adapted: Sequence[str], *, parameters: Sequence[str]) -> list[str]:
    """Return ``target_parameters`` for ``adapter_config.json``: ends of paths where they mean exactly the adapted ones.

    PEFT matches an end in every layer; where only some layers are adapted, full paths are returned.

    Args:
        parameters: All stacked parameters of the model.
    """
    # the holder's own name and that of the module above it: mlp.experts.down_proj
    ends = {".".join(name.rsplit(".", 3)[-3:]) for name in adapted}
    matched = {name for name in parameters if any(name.endswith(f".{end}") for end in ends)}
    has_number = any(part.isdigit() for end in ends for part in end.split("."))
    return sorted(ends) if matched == set(adapted) and not has_number else sorted(adapted)
