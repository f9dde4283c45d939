"""TRL's trainers in benchmarks: rows of token ids, a clock, and no need of the package datasets.

``datasets`` brings pyarrow and pandas, 60 MB that a bare machine may lack. TRL imports the three for type checks and to
prepare text; rows that are token ids already only have to be of the type that it checks.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

__all__ = ["clock_of_steps", "token_rows"]

MODULES = ("datasets", "datasets.fingerprint", "pandas", "pyarrow", "pyarrow.compute", "pyarrow.types")


class _OnlyNames(ModuleType):
    """A module in which every name is a class without instances."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def token_rows(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return ``entries`` as a trainer takes them: a ``datasets.Dataset``, or the list where there is no such package.

    Call it before TRL is imported.
    """
    # before the names are set up: these look for the packages, and must find what is there
    import accelerate  # type: ignore[import-untyped]  # noqa: F401
    import peft  # noqa: F401
    import transformers.trainer  # noqa: F401

    if "datasets" not in sys.modules and importlib.util.find_spec("datasets") is None:
        sys.modules.update({name: _OnlyNames(name) for name in MODULES if name not in sys.modules})
    if isinstance(sys.modules.get("datasets"), _OnlyNames):
        from datasets import Dataset as Checked

        # a list for the loader, a data set for the check of its type
        return type("Rows", (list, Checked), {"cache_files": (), "column_names": None})(entries)
    from datasets import Dataset

    return Dataset.from_list([dict(entry) for entry in entries])


def clock_of_steps(ends: list[float]) -> Any:
    """Return a callback for a trainer that adds to ``ends`` when each step has ended, on the device as well."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    return Clock()
