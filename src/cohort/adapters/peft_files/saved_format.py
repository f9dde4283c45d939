"""Whole modules in PEFT's files: a table under the path of its own module, and its name in the configuration.

Shapes:  r rank rows · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cohort.adapters.modules_to_save.saved_modules import SAVED_NAMES, SAVED_PATHS, SavedModules
from cohort.adapters.peft_files.peft_names import PREFIX
from cohort.adapters.peft_files.vera_format import is_vera
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem

__all__ = ["read_saved_modules", "saved_key", "saved_tensors", "unsupported_modules", "write_saved_rows"]


def saved_key(name: str) -> str:
    """Return the name of a module's table in a file: PEFT's wrapper around the module is left out."""
    return f"{PREFIX}{SAVED_PATHS[name]}.weight"


def saved_tensors(spec: AdapterSpec, weights_rD: Tensor) -> dict[str, Tensor]:
    """Return the tables of an adapter's rank rows under PEFT's names, float32 and contiguous."""
    if spec.saved is None:
        return {}
    rows = weights_rD[spec.saved_row :].contiguous()
    return {saved_key(name): spec.saved.table(rows, name).float().contiguous() for name in spec.saved.names}


def write_saved_rows(spec: AdapterSpec, tensors: Mapping[str, Tensor], rows_rD: Tensor) -> None:
    """Write the tables of a file into the rank rows of an adapter."""
    if spec.saved is not None:
        for name in spec.saved.names:
            spec.saved.table(rows_rD[spec.saved_row :], name).copy_(tensors[saved_key(name)])


def unsupported_modules(config: Mapping[str, Any]) -> list[str]:
    named = [str(name) for name in config.get("modules_to_save") or ()]
    others = [name for name in named if name.rsplit(".", 1)[-1] not in SAVED_NAMES]
    found = [f"modules_to_save {', '.join(others)}"] if others else []
    if named and is_vera(config):
        found.append("modules_to_save in a VeRA adapter")
    return found


def read_saved_modules(config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, where: str) -> SavedModules | None:
    """Return the modules that an adapter has whole, read from its file: ``ensure_weight_tying`` adds to the named."""
    if not config.get("modules_to_save"):
        return None
    tables = {name: tensors[key] for name in SAVED_NAMES if (key := saved_key(name)) in tensors}
    named = {str(name).rsplit(".", 1)[-1] for name in config["modules_to_save"]}
    shapes = {tuple(table.shape) for table in tables.values()}
    if named - tables.keys() or len(shapes) != 1 or any(len(shape) != 2 for shape in shapes):
        raise InputError(
            Problem(
                where=where,
                found=f"modules_to_save {', '.join(sorted(named))} with tables of {sorted(shapes) or 'none'}",
                allowed="one table [vocabulary, width] of each, all of one shape",
                hint="Save the adapter again with PEFT's save_pretrained.",
            )
        )
    (shape,) = shapes
    # the width is the layout's: see PeftAdapter.spec_in
    return SavedModules(names=tuple(tables), vocab_size=shape[0], hidden_size=shape[1], width=1)
