"""Merging adapters on experts into a checkpoint, which may keep experts stacked or one by one.

Shapes:  E experts · K input width · N output width
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.expert_names import expert_name, parameters_among
from cohort.adapters.peft_files.peft_format import PeftAdapter

__all__ = ["ExpertDeltas"]

# in files of experts one by one: the parameter that each weight is a part of, and the part of its outputs
_PARTS = {
    "gate_proj": ("gate_up_proj", 0),
    "w1": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "w3": ("gate_up_proj", 1),
    "down_proj": ("down_proj", None),
    "w2": ("down_proj", None),
}
_ONE = re.compile(r"^(?P<holder>.*)\.(?P<expert>\d+)\.(?P<own>\w+)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertDeltas:
    """What an adapter adds to the weights of experts.

    Attributes:
        adapter: Any adapter; one without experts adds to none.
        input_first: By stacked parameter, whether files keep its weights [E, K, N]; [E, N, K] where it is not named.
    """

    adapter: PeftAdapter
    input_first: Mapping[str, bool]

    @property
    def names(self) -> frozenset[str]:
        """The stacked parameters that something is added to."""
        return frozenset(parameters_among(self.adapter.modules))

    def found_in(self, key: str) -> tuple[str, Tensor] | None:
        """Return the stacked parameter that a tensor of a file is of, and what is added to it; None for other tensors.

        A part of an expert's outputs counts as found: a file that has one part has the others.
        """
        parameters = parameters_among(self.adapter.modules)
        for parameter, num_experts in parameters.items():
            if key == parameter or key.endswith(f".{parameter}") or parameter.endswith(f".{key}"):
                delta_ENK = torch.stack([self._delta(parameter, expert) for expert in range(num_experts)])
                return parameter, delta_ENK.transpose(1, 2) if self.input_first.get(parameter) else delta_ENK
        match = _ONE.match(key)
        if match is None or not match["holder"].endswith("experts") or match["own"] not in _PARTS:
            return None
        own, part = _PARTS[match["own"]]
        layer, expert = _layer_of(key), int(match["expert"])
        for parameter, num_experts in parameters.items():
            if _layer_of(parameter) == layer and expert < num_experts:
                name = parameter.rpartition(".")[2]
                if name == own:
                    delta_NK = self._delta(parameter, expert)
                    return parameter, delta_NK if part is None else delta_NK.chunk(2)[part]
                if name == match["own"] == "up_proj":
                    # experts without a gate
                    return parameter, self._delta(parameter, expert)
        return None

    def _delta(self, parameter: str, expert: int) -> Tensor:
        name = expert_name(parameter, expert)
        a_rK, b_Nr = self.adapter.factors(name, shape=(0, 0))
        return self.adapter.spec.scale_of(name) * (b_Nr.to(torch.float32) @ a_rK.to(torch.float32))


def _layer_of(path: str) -> str | None:
    found = _LAYER.search(path)
    return None if found is None else found[1]
