"""The layering of CONTRIBUTING.md holds: import-linter, and imports with the edge libraries blocked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from importlinter.cli import lint_imports

# GPU machines often have torch, transformers, safetensors and numpy, and little else.
EDGE_LIBRARIES = ("pydantic", "optuna", "ortools", "typer", "rich", "peft", "ruamel", "datasets", "pandas", "pyarrow")
BARE_LAYERS = ("core", "kernels", "adapters", "models", "data", "training")

IMPORT_WITHOUT = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked in this test")

sys.meta_path.insert(0, Blocked())
names = []
for layer in {layers!r}:
    package = importlib.import_module("cohort." + layer)
    names.append(package.__name__)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # data.packing may use ortools: it is the one exception, named here and in the linter's contract
        if not module.name.startswith("cohort.data.packing"):
            names.append(importlib.import_module(module.name).__name__)
for name in ("cohort.tuning.early_exit", "cohort.tuning.trajectory"):
    if importlib.util.find_spec(name):
        names.append(importlib.import_module(name).__name__)
print(len(names))
"""


def test_imports_point_down(repository: Path) -> None:
    assert lint_imports(config_filename=str(repository / "pyproject.toml"), no_cache=True) == 0


def test_core_to_training_import_without_the_edge_libraries() -> None:
    code = IMPORT_WITHOUT.format(blocked=EDGE_LIBRARIES, layers=BARE_LAYERS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(BARE_LAYERS)
