"""How experts are named: ``model.layers.0.mlp.experts.down_proj[3]`` is one linear of a stacked parameter.

The parameter ``model.layers.0.mlp.experts.down_proj`` holds the weights of all experts, and an adapter has factors for
each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["expert_name", "expert_shapes", "parameter_of", "parameters_among"]

_EXPERT = re.compile(r"\[(\d+)\]$")


def expert_name(parameter: str, expert: int) -> str:
    """Return the name of one expert's linear in a stacked parameter, given by its full path."""
    return f"{parameter}[{expert}]"


def parameter_of(name: str) -> str:
    """Return the path of the stacked parameter that an expert's linear is in; any other name as it is."""
    return _EXPERT.sub("", name)


def parameters_among(names: Iterable[str]) -> dict[str, int]:
    """Return the stacked parameters whose experts are among ``names``, and how many each has of them, in order."""
    found: dict[str, int] = {}
    for name in names:
        if (parameter := parameter_of(name)) != name:
            found[parameter] = found.get(parameter, 0) + 1
    return found


def expert_shapes(parameters: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    """Return ``(in_features, out_features)`` of each expert's linear, those of one parameter one after the other.

    Args:
        parameters: Experts, input width and output width by the parameter's path.
    """
    return {
        expert_name(path, expert): (in_features, out_features)
        for path, (num_experts, in_features, out_features) in parameters.items()
        for expert in range(num_experts)
    }
