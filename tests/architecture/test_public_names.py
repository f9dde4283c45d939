"""What is public is listed, exists, and changes only on purpose."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import cohort

PUBLIC_NAMES = {
    "CallbackError",
    "EvaluationReport",
    "StepReport",
    "TasksFailedError",
    "TrialEndReport",
    "CohortError",
    "EarlyExit",
    "Engine",
    "InputError",
    "Problem",
    "RunOptions",
    "ServiceClient",
    "Task",
    "TaskFile",
    "TaskResult",
    "__version__",
    "load",
    "load_run",
    "load_task",
    "resume",
    "run",
    "tune",
}


def test_the_public_names_are_pinned() -> None:
    assert set(cohort.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(cohort, name) is not None
    assert name in dir(cohort)


def test_lower_layers_can_be_reached() -> None:
    assert getattr(cohort, "tuning") is importlib.import_module("cohort.tuning")  # noqa: B009 - its type is not known


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"public names: .*InputError"):
        cohort.Enigne  # noqa: B018


def _modules(repository: Path) -> list[Path]:
    return [path for path in sorted((repository / "src").rglob("*.py")) if path.name not in ("__main__.py",)]


def test_every_module_lists_its_public_names(repository: Path) -> None:
    missing = []
    for path in _modules(repository):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
        defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
        if defines and "__all__" not in targets:
            missing.append(str(path.relative_to(repository)))
    assert missing == []


def test_listed_names_exist(repository: Path) -> None:
    for path in _modules(repository):
        parts = path.relative_to(repository / "src").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("triton"):
                continue
            raise
        for public in getattr(module, "__all__", ()):
            assert hasattr(module, public), f"{name}.__all__ lists {public}, which does not exist"
