"""From names in ``report_to`` to trackers: missing packages are reported, installed ones are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.integrations.trackers import open_trackers
from tests.integrations.trackers.two_trials import FakeHosted, settings_in, train_two


def _installed(**modules: Any) -> Callable[[str], ModuleType]:
    def import_module(name: str) -> Any:
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return modules[name]

    return import_module


def test_what_is_missing_is_said_all_at_once_with_the_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_trackers(["wandb", "comet", "tensorboard"], settings=settings_in(tmp_path), import_module=_installed())
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "pip install wandb" in text
    assert "pip install tensorboard" in text
    assert "'comet'; allowed: tensorboard, wandb, mlflow, trackio, none" in text


def test_a_package_s_own_missing_dependency_is_not_blamed_on_it(tmp_path: Path) -> None:
    def import_module(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'git'", name="git")

    with pytest.raises(ModuleNotFoundError, match="git"):
        open_trackers(["wandb"], settings=settings_in(tmp_path), import_module=import_module)


def test_none_reports_nowhere(tmp_path: Path) -> None:
    train_two(open_trackers(["none"], settings=settings_in(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_tensorboardx_will_do_and_several_trackers_hear_everything(tmp_path: Path) -> None:
    written: list[tuple[str, int]] = []

    class Writer:
        file_writer = SimpleNamespace(add_summary=lambda summary: None)

        def __init__(self, *, log_dir: str, purge_step: int) -> None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def add_text(self, name: str, text: str, step: int) -> None:
            written.append((text, step))

        def close(self) -> None:
            pass

    hosted = FakeHosted()
    modules = {
        "tensorboardX": SimpleNamespace(__name__="tensorboardX", SummaryWriter=Writer),
        "tensorboardX.summary": SimpleNamespace(hparams=lambda parameters, metrics: (1, 2, 3)),
        "wandb": hosted,
    }
    train_two(
        open_trackers(["tensorboard", "wandb"], settings=settings_in(tmp_path), import_module=_installed(**modules))
    )
    assert ("step 3: stop, overfitting (patterns) gap 0.25", 3) in written
    assert len(hosted.runs) == 4
